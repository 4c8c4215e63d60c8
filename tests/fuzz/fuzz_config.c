/* Fuzzes config.json: whatever the text, the answer is a refusal of one line or a config with which everything that is computed from
 * a config alone works: rope, manifest, degrees, shards, plan. Corpus: tests/golden and tests/data/plan configs. */
#include <math.h>
#include <string.h>

#include "model/plan.h"
#include "model/rope.h"
#include "model/shard.h"
#include "fuzz/standalone.h"

static void check_rope(const struct model_config *config, bool local)
{
	struct rope_table table;
	static const int64_t positions[] = {0, 1, 4095, 1 << 30};
	float row[ROPE_MAX_DIM];
	if ((local ? rope_init_local : rope_init)(&table, config, NULL) != STATUS_OK) return;
	for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
		rope_row(&table, positions[p], row);
		for (int i = 0; i < table.rotary_dim; i++) check(isfinite(row[i]));
	}
}

static void check_shards(const struct model_config *config)
{
	struct manifest m;
	if (manifest_init(&m, config, NULL) != STATUS_OK) return;
	int step = m.count > 200 ? m.count / 200 : 1; /* thousands of layers are all the same */
	for (int i = 0; i < m.count; i += step) {
		struct shard_spec specs[8];
		for (int p = 1; p <= 8; p++) {
			bool all = true;
			for (int r = 0; r < p; r++) all = all && shard_of(&specs[r], &m.weights[i], p, r, NULL) == STATUS_OK && shard_validate(&specs[r], "t", 4, NULL) == STATUS_OK;
			if (all) check(shard_validate_group(specs, p, "t", NULL) == STATUS_OK);
			else check(shard_degree(config, p, NULL) != STATUS_OK);
		}
	}
	manifest_fini(&m);
}

static void check_plan(const struct model_config *config)
{
	const struct plan_options options = {.device_memory = UINT64_C(1) << 36, .max_rows = 512, .activation = DTYPE_F32, .kv = DTYPE_F32};
	for (int p = 1; p <= 8; p++) {
		struct plan_degree d;
		plan_degree(&d, config, p, &options);
		check(d.families <= PLAN_MAX_FAMILIES && d.legal == (d.reasons == 0));
		check(d.legal == (shard_degree(config, p, NULL) == STATUS_OK));
		for (int i = 0; d.legal && i < d.families; i++) check(d.family[i].local_n > 0 && d.family[i].local_k > 0);
	}
	int leaves = shard_tree_leaves(config);
	check(leaves >= 1 && leaves <= SUMTREE_MAX_LEAVES && config->q_heads % leaves == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct model_config config;
	struct error err = {0};
	if (model_config_parse(&config, (const char *)data, size, "config.json", NULL, &err) != STATUS_OK) {
		check(err.text[0] && !strchr(err.text, '\n'));
		return 0;
	}
	check(!strchr(config.cannot_run, '\n') && !strchr(config.model_type, '\n'));
	check_rope(&config, false);
	if (config.two_ropes) check_rope(&config, true);
	check_shards(&config);
	check_plan(&config);
	return 0;
}
