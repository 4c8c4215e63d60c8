/* moe.h: what the kernels of the experts see, between moe.c (checks, memory, choice) and the families of kernels. Valid C17 and C++17.
 *
 * A pair is a row and one of its top_k experts: pair row * top_k + i, experts ascending. Few rows: kernels read the matrices that each pair wants
 * and route for themselves: one for all of it (moe_flow.cu), or three (moe_decode.cu). More: the rows are routed (moe_route.cu), the pairs put in slots by expert, cut into tiles of rows of one
 * expert, and every tile is a matrix product (moe_tile.cu on any device, moe_grouped_cuda.cu on tensor cores); then each row adds up its pairs' parts. No
 * grid depends on what the rows chose: there are blocks for the most tiles that could be, and those that find none leave.
 */
#ifndef TANDEM_DEVICE_GPU_MOE_H
#define TANDEM_DEVICE_GPU_MOE_H

#include "device/gpu/linear.h"
#include "device/ops.h"

#define MOE_MAX_EXPERTS 1024
#define MOE_DECODE_ROWS 4 /* more rows read an expert's weights once for all of its rows */
#define MOE_FLOW_ROWS 2   /* more are faster by moe_decode.cu */
#define MOE_LEAST_TILE 16

/* Slots [first, first + rows) are pairs of one expert. */
struct moe_tile {
	int32_t expert, first, rows;
};

struct moe_problem {
	enum dtype type; /* of x, weights, and intermediate results */
	int rows, hidden, experts, top_k;
	int shared; /* 1: there is a shared expert */
	bool norm_topk;
	void *x;
	int64_t x_stride;
	const float *norm_x; /* NULL, or what x is the norm of: f32 rows */
	int64_t norm_stride;
	const float *norm_weight;
	float eps;
	float *logits;      /* [rows][experts + shared] */
	const void *router; /* [experts + shared][hidden] */
	const void *gate_up, *down, *shared_gate_up, *shared_down;
	int64_t gate_up_step, down_step; /* elements from an expert to the next */
	int inner, shared_inner;
	/* intermediate */
	int32_t *chosen;        /* [rows][top_k] */
	float *weight;          /* [rows][top_k + 1]; the last is the shared expert's */
	int32_t *pair_of_slot;  /* [rows * top_k] */
	int32_t *slot_of_pair;
	struct moe_tile *tile;
	int32_t *tiles;         /* how many */
	void *act;              /* [slots or pairs][inner]: silu(gate) * up */
	void *shared_act;       /* [rows][shared_inner] */
	void *part;             /* [slots][hidden] */
	void *shared_part;      /* [rows][hidden] */
	/* result: y = or y += */
	void *y;
	enum dtype y_type;
	int64_t y_stride;
	bool accumulate;
};

/* Inner columns [k0, k0 + k) of every expert, [shared_k0, ...) of the shared one: a span of the sum. */
struct moe_span {
	int k0, k, shared_k0, shared_k;
};

static inline int moe_most_tiles(int rows, int top_k, int experts, int tile_rows)
{
	const int pairs = rows * top_k;
	return (pairs < experts ? pairs : experts) + pairs / tile_rows;
}

#ifdef __cplusplus
extern "C" {
#endif

/* ---- moe_route.cu: chosen and weight; slots and tiles of at most `tile_rows` rows. */
enum status moe_route_launch(const struct gpu_context *context, const struct moe_problem *p, struct error *err);
enum status moe_sort_launch(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, struct error *err);

/* ---- moe_decode.cu: few rows. logits, and x where it is to be made; up: act [pair], shared_act; down: y of a span. Nothing else may come between logits and down. */
bool moe_decode_can(const struct gpu_context *context, const struct moe_problem *p);
enum status moe_decode_logits(const struct gpu_context *context, const struct moe_problem *p, struct error *err);
enum status moe_decode_up(const struct gpu_context *context, const struct moe_problem *p, struct error *err);
enum status moe_decode_down(const struct gpu_context *context, const struct moe_problem *p, const struct moe_span *span, struct error *err);

/* ---- moe_flow.cu: few rows, all of it in one kernel: x where it is to be made, and y of all columns. */
bool moe_flow_can(const struct gpu_context *context, const struct moe_problem *p);
enum status moe_flow_launch(const struct gpu_context *context, const struct moe_problem *p, struct error *err);

/* ---- moe_tile.cu: any shape, type and alignment; act [slot] and part [slot] from tiles of tile_rows (16 or 64) rows. combine: y = sum over a row's parts. */
enum status moe_tile_up(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, struct error *err);
enum status moe_tile_down(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, const struct moe_span *span, struct error *err);
enum status moe_combine(const struct gpu_context *context, const struct moe_problem *p, struct error *err);
/* y of a span in the invariant order: per leaf one chain over the row's experts, ascending, the shared one last. */
enum status moe_tree_down(const struct gpu_context *context, const struct moe_problem *p, const struct moe_span *span, const struct gemm_leaves *leaves,
                          struct error *err);

#ifdef __cplusplus
}
#endif

#endif
