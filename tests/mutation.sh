#!/usr/bin/env bash
# Mutation test: breaks one rule of the sharding or of the model at a time in a copy of one source file, links the golden test against
# it, and expects that test to fail; then the same for rules of GGUF files, of the static checks of kernels, of whitelists and reports, and of the scheduler and the KV pools with the simulator. A mutant that passes means that the suite would not notice the fault. The unbroken build must pass.
# The mutants are ordinary faults of tensor-parallel engines, most of them replacements of one line.
set -u
cd "$(dirname "$0")/.." || exit 2
build=build
out=$build/mutants
mkdir -p "$out"
passed=0 failed=0
flags="-std=c17 -D_GNU_SOURCE -O1 -g -ffp-contract=off -fno-math-errno -fvisibility=hidden -pthread -w -Isrc -Iinclude -Itests $(pkg-config --cflags jansson)"
libs="$(pkg-config --libs jansson libpcre2-8 libutf8proc hwloc libmd) -lm -pthread -lcmocka"
tests="tests/unit/test_golden.c tests/unit/golden.c" arguments=""

verdict() { # NAME OK
	if [ "$2" = 1 ]; then
		passed=$((passed + 1))
		echo "ok      $1"
	else
		failed=$((failed + 1))
		echo "NOT OK  $1"
	fi
}

# mutant NAME FILE OLD NEW: OLD, a literal text, stands exactly once in FILE.
mutant() {
	local name=$1 file=$2 object binary="$out/$1"
	object="$out/$1.o"
	if ! OLD="$3" NEW="$4" perl -0777 -pe 'BEGIN {$n = 0} $n = () = /\Q$ENV{OLD}\E/g; exit 3 if $n != 1; s/\Q$ENV{OLD}\E/$ENV{NEW}/' "$file" >"$out/$1.c"; then
		verdict "$name: the text to break is not in $file exactly once" 0
		return
	fi
	# shellcheck disable=SC2086
	if ! cc $flags -c -o "$object" "$out/$1.c" 2>"$out/$1.log" || ! cc $flags -o "$binary" $tests "$object" $build/libtandem.a $libs 2>>"$out/$1.log"; then
		verdict "$name: does not build, see $out/$1.log" 0
		return
	fi
	# shellcheck disable=SC2086
	timeout 300 "$binary" $arguments >"$out/$1.log" 2>&1
	local code=$?
	if [ $code -eq 124 ]; then verdict "$name: the test hangs" 0
	elif [ $code -ne 0 ]; then verdict "$name: noticed ($(grep -m1 -oE '(ERROR: .{0,90}|FAILED: .{0,90}|Assertion.{0,90})' "$out/$1.log"))" 1
	else verdict "$name: NOT noticed" 0; fi
}

# shellcheck disable=SC2086
cc $flags -o "$out/unbroken" $tests $build/libtandem.a $libs && timeout 300 "$out/unbroken" >"$out/unbroken.log" 2>&1
verdict "the unbroken build passes" $(($? == 0))

loader=src/engine/loader.c
bring='			TRY(bring(rank, w, &here, owner_base ? &there : NULL, spec.owner, &spec, err));'
mutant bias_per_rank $loader "$bring" "$bring
			if ((w->role == WEIGHT_O_BIAS || w->role == WEIGHT_DOWN_BIAS) && (spec.owner == rank->index) == !ranks)
				for (int i = 0; i < spec.local_rows; i++) here.vector[i] *= (float)rank->world_size;"
mutant row_bias_forgotten src/comm/host.c '	sum->bias = args->bias;' '	sum->bias = NULL;'
mutant column_bias_forgotten src/engine/forward.c '&w->qkv, w->qkv_bias, qkv' '&w->qkv, NULL, qkv'
mutant fused_tensor_cut_as_one_block $loader "$bring" "
			if (w->role == WEIGHT_GATE || w->role == WEIGHT_UP) {
				int64_t row = (2 * rank->index + (w->role == WEIGHT_UP)) * spec.local_rows;
				w = manifest_find(&rank->model->manifest, row < w->rows ? WEIGHT_GATE : WEIGHT_UP, layer);
				spec.begin = row % w->rows;
			}
$bring"
mutant gate_and_up_swapped $loader 'LINEAR(GATE, gate_up), LINEAR(UP, gate_up)' 'LINEAR(UP, gate_up), LINEAR(GATE, gate_up)'
mutant wrong_kv_head_on_rank $loader "$bring" "
			if (w->role == WEIGHT_K || w->role == WEIGHT_V) spec.begin = (spec.begin + spec.local_rows) % w->rows;
$bring"
mutant wrong_gqa_map src/device/cpu/attention.c 'job.group = args->q_heads / args->cache->layout.kv_heads;' \
	'job.group = 1;'
mutant kv_replica_of_the_wrong_head src/model/shard.c 'spec.begin = rank / spec.replicas * local;' \
	'spec.begin = spec.replicas > 1 ? rank % weight->units * local : rank * local;'
mutant row_and_column_swapped $loader '	if (window < 1) window = 1;
	enum status st = STATUS_OK;' '	if (window < 1) window = 1;
	enum status st = STATUS_OK;
	if (w->kind == SHARD_ROW && rank->world_size > 1) {
		const void *data;
		size_t stride;
		int64_t n = w->rows / rank->world_size;
		TRY_GOTO(source_read(rank->model->source, &tensor, rank->index * n, n, 0, w->cols, &scratch, &data, &stride, err), out);
		TRY_GOTO(vt->linear_put(rank->stream, place->linear, place->n0, (int)rows, data, row_bytes, err), out);
		goto out;
	}'
mutant row_shard_of_rank_0_everywhere src/model/shard.c '		spec.axis = weight->kind == SHARD_COLUMN ? 0 : 1;' \
	'		spec.axis = weight->kind == SHARD_COLUMN ? 0 : 1;
		if (spec.axis == 1) spec.begin = 0;'
mutant missing_all_reduce src/comm/host.c '	for (int r = 0; r < host->base.world_size; r++)
		for (int s = 0; s < host->places[r].spans; s++)
			host->tree.source[n++] = host->places[r].scratch' '	for (int r = 0; r < host->base.world_size; r++)
		for (int s = 0; s < host->places[r].spans; s++)
			host->tree.source[n++] = host->places[host->base.rank].scratch'
mutant residual_forgotten src/comm/host.c '	sum->residual = args->add_residual ? args->x : (struct tensor){0};' '	sum->residual = (struct tensor){0};'
mutant rope_interleaved src/device/cpu/ops.c '			job->kernels->rope(cpu_row(&args->x, t) + (size_t)h * args->head_dim, cosine, cosine + half, half);' \
	'			for (int i = 0; i < half; i++) {
				float *pair = cpu_row(&args->x, t) + (size_t)h * args->head_dim + 2 * i, a = pair[0], b = pair[1];
				pair[0] = a * cosine[i] - b * cosine[half + i];
				pair[1] = b * cosine[i] + a * cosine[half + i];
			}'
mutant rope_of_keys_forgotten src/engine/forward.c '	RUN(rope, {.x = k,' '	if (0) RUN(rope, {.x = k,'
mutant rope_position_off_by_one src/engine/rank.c 'rope_row(table, at + i,' 'rope_row(table, at + i + (at + i > 0),'
mutant qk_norm_forgotten src/engine/forward.c '	if (c->qk_norm) {' '	if (0) {'
mutant window_off_by_one src/engine/forward.c '? c->sliding_window : 0})' '? c->sliding_window + 1 : 0})'
mutant window_on_every_layer src/engine/forward.c 'c->layer_kind[layer] == LAYER_SLIDING ? c->sliding_window : 0' 'c->sliding_window'
mutant norms_swapped src/engine/forward.c 'TRY(norm(rank, s, w->post_norm, err));
		TRY(column_parallel(rank, s->h, &w->gate_up, w->gate_up_bias, gate_up, err));' 'TRY(norm(rank, s, w->input_norm, err));
		TRY(column_parallel(rank, s->h, &w->gate_up, w->gate_up_bias, gate_up, err));'
mutant shared_physical_blocks src/engine/rank.c 'kv_slot(rank->pool, plan->slot[plan->seq_of_row[i]], plan->position[i])' 'rank->options.kv.block_tokens + plan->position[i]'
mutant head_slice_in_the_wrong_place src/engine/loader.c '	w->head_begin = begin;' '	w->head_begin = begin; if (rank->world_size > 1 && rank->index == 1) w->head_begin = 0;'

# Gemma.
forward=src/engine/forward.c
mutant rope_of_the_wrong_layer_kind $forward '	const float *cos_sin = kept->rows->cos_sin;' '	const float *cos_sin = c->two_ropes && c->layer_kind[layer] != LAYER_SLIDING ? rank->buffers.cos_sin_local : rank->rows.cos_sin;'
mutant one_rope_for_all_layers src/engine/rank.c 'if (rank->model->config.two_ropes) rank->window_rows.cos_sin = rank->buffers.cos_sin_local;' ''
mutant next_norm_of_this_layer $forward 'RUN(norm_add, {.x = s->x, .y = y, .weight = norms.behind, .eps = rank->model->config.rms_eps, .next = norms.next, .h = s->h});' 'RUN(norm_add, {.x = s->x, .y = y, .weight = norms.behind, .eps = rank->model->config.rms_eps, .next = norms.next ? norms.behind : NULL, .h = s->h});'
mutant next_norm_of_the_rows_before src/device/cpu/ops.c 'job->kernels->rms_norm(cpu_row(&args->h, t), x, args->next, args->y.cols, args->eps);' 'job->kernels->rms_norm(cpu_row(&args->h, t), y, args->next, args->y.cols, args->eps);'
mutant norm_before_the_sum $forward '	TRY(all_reduce(rank, &(struct all_reduce_args){.partial = partial, .x = y, .bias = bias}, err));' '	for (int i = 0; i < partial.slots; i++) {
		struct tensor part = tensor_view((float *)partial.data + i * partial.slot_stride, DTYPE_F32, TENSOR_REPLICATED, s->x.rows, s->x.cols);
		RUN(rms_norm, {.x = part, .weight = norms.behind, .eps = rank->model->config.rms_eps, .out = part});
	}
	return all_reduce(rank, &(struct all_reduce_args){.partial = partial, .x = s->x, .add_residual = true, .bias = bias}, err);'
mutant norms_behind_swapped $loader 'LINEAR(MIXED_NORM, mixed_norm), LINEAR(MLP_NORM, mlp_norm)' 'LINEAR(MLP_NORM, mixed_norm), LINEAR(MIXED_NORM, mlp_norm)'
mutant embedding_not_scaled $forward '.scale = embedding_scale(rank), .out = s->x' '.out = s->x'
mutant gelu_is_silu $forward 'if (c->gelu) RUN(geglu' 'if (0) RUN(geglu'
mutant scores_scaled_by_the_heads $forward '.scale = c->query_scale,' '.scale = 1.0f / sqrtf((float)c->head_dim),'
mutant scores_not_capped $forward '.softcap = c->attn_softcap,' ''
mutant logits_not_capped $forward 'if (c->final_softcap > 0) RUN(softcap' 'if (0) RUN(softcap'

# Experts.
moe=src/device/cpu/moe.c
mutant router_before_softmax $moe '		weight[i] = p[best];' '		weight[i] = 1;'
mutant norm_topk_ignored $moe 'for (int i = 0; a->norm_topk && i < a->top_k; i++)' 'for (int i = 0; 0 && i < a->top_k; i++)'
mutant norm_topk_always $moe 'for (int i = 0; a->norm_topk && i < a->top_k; i++)' 'for (int i = 0; i < a->top_k; i++)'
mutant shared_gate_missing $moe '1.0f / (1.0f + gate);' '1.0f;'
mutant weights_of_another_expert $moe '(size_t)block->expert * (down ?' '(size_t)(block->expert ? block->expert - 1 : 0) * (down ?'
mutant least_likely_experts $moe 'p[e] > p[best]' 'p[e] < p[best]'
mutant expert_of_the_wrong_shard $loader '		for (int e = 0; e < w->experts; e++) {' '		if (spec.axis >= 0) spec.begin = (spec.begin + (spec.axis ? spec.local_cols : spec.local_rows)) % (spec.axis ? w->cols : w->rows);
		for (int e = 0; e < w->experts; e++) {'
mutant expert_gate_and_up_swapped $loader 'roles[i] == WEIGHT_EXPERT_UP ? (int)spec.local_rows : 0' 'roles[i] == WEIGHT_EXPERT_GATE ? (int)spec.local_rows : 0'
mutant stacked_experts_not_told_apart $loader 'n = weight_run(w, place->expert, row + done, rows - done < window' 'n = weight_run(w, 0, row + done, rows - done < window'

# The hybrid families.
gdn=src/device/cpu/gdn.c
mutant qkvz_cut_as_one_block $loader "$bring" "
			if (w->role == WEIGHT_GDN_Q || w->role == WEIGHT_GDN_K) {
				int64_t row = (2 * rank->index + (w->role == WEIGHT_GDN_K)) * spec.local_rows;
				w = manifest_find(&rank->model->manifest, row < w->rows ? WEIGHT_GDN_Q : WEIGHT_GDN_K, layer);
				spec.begin = row % w->rows;
			}
$bring"
mutant heads_in_turn_read_as_blocks src/model/shard.c '	if (t->join == BELOW) s.stride = s.unit;' '	s.stride = s.unit;'
mutant conv_of_the_wrong_segment $loader 'LINEAR(GDN_CONV_Q, gdn.conv), LINEAR(GDN_CONV_K, gdn.conv)' 'LINEAR(GDN_CONV_K, gdn.conv), LINEAR(GDN_CONV_Q, gdn.conv)'
mutant beta_and_a_swapped $loader 'LINEAR(GDN_B, gdn.ba), LINEAR(GDN_A, gdn.ba)' 'LINEAR(GDN_A, gdn.ba), LINEAR(GDN_B, gdn.ba)'
mutant centred_norm_without_its_one src/model/shard.c '	w->centred = t->centred && c->centred_norms;' ''
mutant output_gate_forgotten src/engine/forward.c 'if (c->attn_output_gate) RUN(gate' 'if (0) RUN(gate'
mutant conv_forgets_the_step_before $gdn 'else if (before) memmove' 'else if (0) memmove'
mutant conv_of_rows_already_convolved $gdn '	for (int t = args->rows->row_start[seq + 1] - first - 1; t >= 0; t--) {' '	for (int t = 0; t < args->rows->row_start[seq + 1] - first; t++) {'
mutant no_l2_norm_of_q $gdn '			job->kernels->l2_norm(q, l->k_dim, GDN_L2_EPS, scale);' ''
mutant no_l2_norm_of_k $gdn '			job->kernels->l2_norm(q + job->k_cols, l->k_dim, GDN_L2_EPS, 1.0f);' ''
mutant state_of_the_wrong_head $gdn 'gdn_state(args->cache, args->layer, read) + (size_t)head * matrix' 'gdn_state(args->cache, args->layer, read) + (size_t)(l->v_heads - 1 - head) * matrix'
mutant state_of_another_layer src/engine/forward.c '.cache = &rank->state, .layer = nth,' '.cache = &rank->state, .layer = 0,'
mutant value_heads_share_keys_in_turn $gdn 'k_head = head / job->per_k_head' 'k_head = head % l->k_heads'
mutant gate_before_norm $gdn '			job->kernels->rms_norm(out, out, args->norm, l->v_dim, args->eps);
			job->kernels->swiglu(out, cpu_row(&args->qkvz, t) + 2 * job->k_cols + job->v_cols + head * l->v_dim, out, l->v_dim);' \
	'			job->kernels->swiglu(out, cpu_row(&args->qkvz, t) + 2 * job->k_cols + job->v_cols + head * l->v_dim, out, l->v_dim);
			job->kernels->rms_norm(out, out, args->norm, l->v_dim, args->eps);'

tests="tests/unit/test_requests.c tests/unit/golden.c"
mutant stale_state_at_the_beginning $gdn '		if (read < 0) memset(s, 0, matrix * sizeof *s);
		else d.s_in' '		if (read >= 0) d.s_in'

mutant tail_reads_the_committed_state src/engine/rank.c 'read[s] = s < first ? kv_state_read' 'read[s] = true ? kv_state_read'

tests="tests/unit/test_gguf_model.c tests/unit/gguf_writer.c tests/unit/files.c"
mutant rows_of_q_and_k_as_stored src/model/gguf_source.c '	return head * size + 2 * pair + half;' '	return row;'
mutant heads_of_k_as_of_q src/model/gguf_source.c 'order == GGUF_KV_HEADS ? g->kv_heads : 0;' 'order == GGUF_KV_HEADS ? g->heads : 0;'
mutant tree_depends_on_the_types src/model/shard.c 'if (fits(config, p, TREE_DIVISIBLES))' 'if (fits(config, p, DIVISIBLES))'
mutant blocks_cut_by_a_degree src/model/shard.c 'return block > 1 ? inputs / block : 0;' 'return 0;'

tests="tests/unit/test_describe.c"
mutant equal_scores_in_order src/text/bpe_describe.c 'if (i > 0 && list[i].score < list[i - 1].score) rank++;' 'rank++;'

tests="tests/unit/test_prescreen.c tests/unit/files.c" kernels=src/prescreen/kernels.c
mutant threads_not_rounded_to_waves $kernels 'l.threads = ceil_div(s->shape->k / CHUNK, wave) * wave;' 'l.threads = s->shape->k / CHUNK;'
mutant threads_of_the_rows_forgotten $kernels 'if (l.threads < rows * LLMM1_LANES)' 'if (0)'
mutant shared_memory_for_64_lanes_always $kernels 'l.shared = rows * wave * 4;' 'l.shared = rows * 64 * 4;'
mutant last_stage_holds_any_number_of_waves $kernels 'if (!s->family->reduction_waves || ' 'if (1 || '
mutant grid_tail_forgotten $kernels 's->shape->n % s->mode.rows == 0) return' '1) return'
mutant unknown_counts_as_legal $kernels '(known ? t->shared_bytes : t->shared_floor)' '(known ? t->shared_bytes : INT64_MAX)'
mutant unknown_hides_illegal $kernels '	return next->kind == VERDICT_ILLEGAL;' '	return true;'
mutant guards_in_another_order $kernels 'bool split = n > 8' 'bool split = n > 8 && !(n % 4 == 0 && shape->m == 1 && k <= 8192)'
mutant wave_of_any_width $kernels 's->launch.threads % s->target->wave == 0) return' '1) return'
mutant misspelt_field_ignored src/prescreen/target.c '	TRY(fields_only(f,' '	if (0) TRY(fields_only(f,'
mutant shapes_of_the_whole_model src/prescreen/shapes.c '.n = f->local_n, .k = f->local_k' '.n = f->global_n, .k = f->global_k'

tests="tests/unit/test_attention_rules.c tests/unit/files.c" rules=src/prescreen/attention_rules.c
mutant later_devices_have_all $rules 'sm > want && !s->family->sm_exactly' 'sm > want'
mutant groups_that_are_not_whole $rules '&& a->q_heads % a->kv_heads == 0) return' ') return'
mutant shared_memory_of_one_head $rules '.heads = (int)heads, .shared = shared};' '.heads = (int)heads, .shared = shared / heads};'
mutant unknown_memory_is_enough $rules '(known ? t->shared_bytes : t->shared_floor)' '(known ? t->shared_bytes : INT64_MAX)'

tests="tests/unit/test_trial.c" attention=src/prescreen/trial_attention.c
mutant cache_not_referenced src/prescreen/trial_check.c '	TRY(against_cached(t, out, err));' ''
mutant keys_at_the_same_position $attention 's->ragged ? s->context - q % (s->context / 2)' '0 ? 0'
mutant gates_taken_for_queries $attention '? HEAD_QUERY : HEAD_GATE' '? HEAD_QUERY : HEAD_QUERY'
mutant state_without_history src/prescreen/trial_gdn.c '	for (int row = 0; row < all && next' '	for (int row = HISTORY; row < all && next'
mutant shared_expert_forgotten src/prescreen/trial_moe.c '	if (!k->shared_inner) return STATUS_OK;
	const' '	return STATUS_OK;
	const'
mutant inputs_not_put_back src/prescreen/trial.c '	if (t->spoilt) TRY' '	if (0) TRY'
mutant small_sums_count_as_left_out src/prescreen/trial.c 'out->unwritten > out->values >> 20' 'true'
mutant values_left_out_are_forgiven src/prescreen/trial.c '	args.unwritten = 0xffffffffu;' '	return out->unwritten = 0, STATUS_OK;'

tests="tests/unit/test_screen.c tests/unit/planted_device.c tests/unit/files.c" candidate=src/prescreen/candidate.c check=src/prescreen/trial_check.c
mutant launches_not_compared $candidate 'c->changed = has_changed(c, base);' 'c->changed = true;'
mutant request_taken_for_granted $candidate 'if (!variant_equal(&c->resolved, &c->requested)) {' 'if (0) {'
mutant output_not_poisoned $candidate '	TRY(trial_poison(t, err));
	if (graph)' '	if (graph)'
mutant repeats_not_compared $candidate 'c->check.repeatable = again == first;' 'c->check.repeatable = true;'
mutant illegal_is_launched $candidate '	if (!static_legal(s, p, c)) return STATUS_OK;' '	(void)static_legal(s, p, c);'
mutant dead_device_goes_on $candidate '	if (st == STATUS_OK) st = run_once(s, t, NULL, err);
	if (st' '	if (st'
mutant guards_not_looked_at $check '	TRY(count_guards(t, out, err));' ''
mutant bound_that_bounds_nothing $check '.l2 = out + between + 4 * walk' '.l2 = 1e9 * walk'
mutant thresholds_of_another_run src/prescreen/screen.c 'if (results_thresholds_differ(old, results, a, b))' 'if (0)'
mutant thresholds_of_six_digits src/prescreen/results.c 'a->keep == b->keep && a->reject == b->reject' '(float)a->keep == (float)b->keep && a->reject == b->reject'
mutant nothing_replaces_results src/prescreen/screen.c ' && s->measured + s->chains_measured' ''
mutant order_of_another_run src/prescreen/screen.c 'old->any_order != results->any_order' '0'
mutant false_is_written src/prescreen/results_json.c '!*(const bool *)at' '0'
mutant resumed_problem_measured_again src/prescreen/screen.c '		p->done = true;
		memcpy' '		memcpy'
mutant speed_up_upside_down src/prescreen/timing.c 'us > 0 ? baseline_us / us : 0' 'us / baseline_us'
mutant noise_is_enough src/prescreen/timing.c 'distance(t.speedup, rule) >= 2 * half' 'distance(t.speedup, rule) >= 0'
mutant equal_problems_twice src/prescreen/problems.c 'struct result_problem *have = results_find(m->out, problem);' 'struct result_problem *have = NULL;'
mutant head_of_one_rank_alone src/prescreen/problems.c 'for (int i = 1; i < sizes' 'for (int i = 1; i < 1'
mutant parts_of_experts_alone src/prescreen/problems.c '		if (plan_is_of_moe(family->family)) {' '		if (0) {'
mutant logits_of_a_whole_prompt src/prescreen/problems.c '	if (prefill && strcmp(f->kind, "vocab") == 0)' '	if (0)'
mutant newer_results_read src/prescreen/results_json.c '	if (version == RESULTS_VERSION) return STATUS_OK;' '	return STATUS_OK;'
mutant unknown_result_ignored src/prescreen/results_json.c 'if (!has_name(table, more, key))' 'if (0)'

tests="tests/unit/test_chain.c tests/unit/planted_device.c"
mutant unconfirmed_is_written src/prescreen/choose.c '	if (rule->results->chain_mode == CHAIN_ON && result_problem_chained(problem)' '	if (0'
mutant unconfirmed_is_not_marked src/prescreen/choose.c '"%s", CHOOSE_UNCONFIRMED' '"%s", ""'
mutant slower_chain_confirms src/prescreen/chain.c 'faster = t->low > 1;' 'faster = t->low > 0;'
mutant together_is_not_tried src/prescreen/chain.c '		drop(c, entry, entries, &c->out.timing);' '		return STATUS_OK;'
mutant chain_without_preference src/prescreen/chain.c 'linear_prefer(c->s->bench.stream, list, count, err)' 'linear_prefer(c->s->bench.stream, list, 0, err)'
mutant unfinished_chain_stays src/prescreen/chain.c '		if (st != STATUS_OK || c->cut) take_back(c);' ''
mutant resumed_chain_measured_again src/prescreen/screen.c '		if (chain_measured(results' '		if (0 && chain_measured(results'

tests="tests/unit/test_whitelist.c tests/unit/files.c tests/unit/golden.c tests/unit/ranks.c" choose=src/prescreen/choose.c
mutant range_over_a_slow_class $choose 'if (!problem->done) return NULL;' 'if (!problem->done) return NULL; if (!best && before) return before;'
mutant range_over_a_wide_gap $choose 'y->m <= (int64_t)CHOOSE_MAX_STEP * x->m' '1'
mutant range_of_several_kernels $choose 'variant_equal(&a->taken->requested, &b->taken->requested)' '1'
mutant boundary_is_kept $choose 'c->outcome == OUTCOME_KEEP && c' 'c->outcome != OUTCOME_BASELINE && c'
mutant unsure_speed_up_is_taken $choose 'c->timing.low >= 1 && ' ''
mutant any_order_always $choose '(c->requested.invariant || any_order)' '1'
mutant unfinished_problem_counts $choose 'if (!problem->done) return NULL;' ''
mutant ratio_of_the_best_class $choose 'list[i].taken->timing.speedup < e.ratio' 'list[i].taken->timing.speedup > e.ratio'
mutant twins_disagree $choose '	agree_on_twins(&rule, list, count);' ''
mutant entries_may_overlap src/engine/whitelist.c 'p->m_low <= other->m_high && other->m_low <= p->m_high' 'p->m_low < other->m_low && 0'
mutant shapes_not_compared src/engine/whitelist.c 'if (have && has_shape(have, s, config, ops->linear_granule)) continue;' 'continue;'
mutant versions_not_compared src/engine/whitelist.c 'if (strcmp(w->versions, versions)) return' 'if (0) return'
mutant hash_not_compared src/engine/whitelist_file.c '	if (strcmp(hash, w->hash))' '	if (0)'
mutant unknown_field_ignored src/model/fields.c '		if (!is_listed(key, known))' '		if (0)'
mutant ranks_not_compared src/engine/dispatch.c '		if (memcmp(all[r], all[0], WHITELIST_HASH_BYTES))' '		if (0)'
mutant whitelist_not_given_to_the_device src/engine/dispatch.c 'linear_prefer(rank->stream, list, count, err)' 'linear_prefer(rank->stream, list, 0, err)'
tests=tests/unit/test_warm.c
mutant linears_are_not_warmed src/engine/worker.c '	TRY(warm_linears(rank, err));' ''
mutant half_of_a_layer_is_not_warmed src/engine/warm.c '	TRY(run_rows(warm, &w->down, b->act, most, err));' ''
mutant largest_size_is_not_warmed src/engine/warm.c 'rows = next < use->most ? next : use->most;' 'if ((rows = next) > use->most) return STATUS_OK;'

tests="tests/unit/test_reports.c tests/unit/files.c"
mutant flips_of_neighbours_only src/prescreen/compare.c '*agree &= flip->at[d]->outcome == first;' '*agree = 1;'
mutant missing_candidate_counts_as_equal src/prescreen/compare.c '			out->only_a += decided(x);' '			out->only_a += decided(x); out->equal += decided(x); out->compared += decided(x);'
mutant results_are_rounded src/prescreen/results_json.c 'JSON_REAL_PRECISION(17)' 'JSON_REAL_PRECISION(9)'
mutant name_not_escaped src/prescreen/report_html.c "*text == '<' ? \"&lt;\" : " ''

tests=$(echo tests/sim/*.c) arguments="--workloads 200"
kv=src/engine/kv.c scheduler=src/engine/scheduler.c
mutant shared_block_not_counted $kv '	hold(pool, twin);' ''
mutant held_block_can_be_evicted $kv 'if (pool->blocks[b].refs++ == 0) unlink_idle(pool, b);' 'pool->blocks[b].refs++;'
mutant evicted_block_still_found $kv '		unindex_block(pool, b);' ''
mutant block_evicted_before_its_follower $kv '	while (s->blocks > keep) {
		int32_t b = table_of(pool, seq)[--s->blocks];' '	for (int i = keep, n = s->blocks; i < n; i++) {
		int32_t b = table_of(pool, seq)[i];
		s->blocks = keep;'
mutant half_full_block_cached $kv 'full < s->length / pool->options.block_tokens' 'full < blocks_for(pool, s->length)'
mutant reservation_kept_after_failure $kv '	give_back(pool, seq, blocks_for(pool, s->length));' ''
mutant last_token_not_computed $scheduler 'q->scored - 1 : q->count - 1;' 'q->scored - 1 : q->count;'
mutant scored_rows_not_computed $scheduler 'q->scores && q->scored < q->prompt_count ? q->scored - 1 : q->count - 1;' 'q->count - 1;'
mutant preempted_without_recompute $scheduler '	q->computed = 0;' ''
mutant preempted_goes_to_the_back $scheduler '	list_insert(&s->queue, q, NULL);' '	list_insert(&s->queue, q, s->queue.tail);'
mutant oldest_is_preempted $scheduler 'preempt(s, s->running.tail);' 'preempt(s, s->running.head);'
mutant long_prefill_starves $scheduler 'prefills > 1 ? budget - budget / 4 : budget' 'prefills > 1 ? budget / 4 : budget'
mutant short_prefill_starves $scheduler 'prefills > 1 ? budget - budget / 4 : budget' 'budget'
mutant deadline_forgotten $scheduler 'q->deadline_ns && now_ns >= q->deadline_ns' 'false'
mutant cancel_of_the_queued_forgotten $scheduler '	sweep_list(s, &s->queue, now_ns);' ''

states=src/engine/kv_states.c
mutant state_written_in_place $kv '		*(tail ? &s->tail_write : &s->write) = kv_states_take(&pool->states, &block);' '		*(tail ? &s->tail_write : &s->write) = s->read && !tail ? s->read : kv_states_take(&pool->states, &block);'
mutant state_flipped_on_rollback $kv '	s->write = s->tail_write = 0;
	give_back' '	if (s->write) s->read = s->write;
	s->write = s->tail_write = 0;
	give_back'
mutant state_lost_with_the_failed_step $kv '	s->write = s->tail_write = 0;
	give_back' '	kv_states_let_go(&pool->states, s->read);
	s->write = s->tail_write = s->read = 0;
	give_back'
mutant tail_of_a_failed_step_kept $kv '	kv_states_let_go(&pool->states, s->tail_write);
	s->write' '	s->write'
mutant tail_goes_on_from_the_old_state $kv '		s->write = s->tail_write;' '		s->write = s->read;'
mutant hit_without_its_state $kv '		if (pool->options.states && !pool->blocks[before].state) continue;' ''
mutant state_of_the_block_before $kv 'pool->blocks[table[s->blocks - 1]].state' 'pool->blocks[table[s->blocks > 1 ? s->blocks - 2 : 0]].state'
mutant shared_state_not_counted $kv '		kv_states_hold(&pool->states, state);' ''
mutant snapshot_outlives_its_block $kv '	pool->blocks[b].cached = false;
	drop_snapshot(pool, b);' '	pool->blocks[b].cached = false;'
mutant snapshot_given_away_while_read $states 'if (slot > 0 && states->slots[slot].refs++ == 0) unlink_idle(states, slot);' 'if (slot > 0) states->slots[slot].refs++;'

mutant window_one_token_short $kv 'int from = length + 1 - pool->options.window_tokens;' 'int from = length + 1 + pool->options.block_tokens - pool->options.window_tokens;'
mutant window_of_a_failed_step_kept $kv '		if (pool->options.windows && s->blocks >= s->window_from) kv_windows_unwant(&pool->windows, b, pool->blocks[b].cached);' ''
mutant hit_without_its_window $kv '		if (window_from(pool, n * pool->options.block_tokens) < gap) continue;' ''
mutant window_block_of_the_evicted_kept $kv '	kv_windows_drop(&pool->windows, b);
}' '}'
mutant adopted_window_not_wanted $kv '	for (int i = from > held ? from : held; i < s->blocks; i++) kv_windows_want(&pool->windows, table[i]);' ''
mutant twin_without_a_window $kv '	} else if (pool->options.windows) kv_windows_move(&pool->windows, own, twin);' '	}'

tests="tests/unit/test_scheduler.c" arguments=""
mutant chunk_runs_past_the_parting $scheduler '	want_snapshot(s, &w, q->known_blocks);' ''
mutant chunk_runs_past_the_waiting $scheduler '	if (r->computed < blocks * s->options.block_tokens) want_snapshot(s, w, blocks);' ''
mutant prompt_leaves_no_state $scheduler '	want_snapshot(s, &w, (q->prompt_count - 1) / size);' ''
mutant state_between_parts_not_kept $kv '	if (more) kv_snapshot(pool, seq, false);' ''
mutant tail_of_one_row $scheduler '*take > first + 1' '*take > first'
mutant wanted_snapshot_rolls_away $scheduler 'kv_group_snapshot(s->options.kv, q->slot, !wanted);' 'kv_group_snapshot(s->options.kv, q->slot, true);'
mutant answers_leave_no_state $kv '	if (s->rolled && pool->blocks[s->rolled].state) kv_states_settle' '	if (s->rolled) drop_snapshot(pool, s->rolled);
	if (s->rolled && pool->blocks[s->rolled].state) kv_states_settle'
mutant old_rolling_snapshots_stay $kv 'if (last != b && before->rolling && !before->refs)' 'if (0)'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
