/* report_html.c: the page. A table per family: rows are M classes, columns TP degrees, a cell is the bar of its best candidate. No script: what a
 * cell shows when it is pointed at or has the focus is part of the page, so that it also prints, and can be searched. */
#include <stdio.h>
#include <string.h>

#include "prescreen/compare.h"
#include "prescreen/rejects.h"
#include "prescreen/report.h"

#define SCALE_LOW 0.8 /* speed-up at the left end of a bar's field */
#define SCALE_LEAST 1.3 /* and at the right end, at least */
#define SCALE_MOST 3.0

struct page {
	const struct results *results;
	struct buf *out;
	struct grid grid;
	struct degree_flips flips;
	struct rejects rejects;
	double scale; /* speed-up at the right end */
	int next_id;  /* of evidence */
};

static const char style[] =
	":root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--line:#d9dce1;--field:#f1f2f5;--keep:#1a7f4b;--boundary:#b07a00;--reject:#9aa0aa;"
	"--mark:#c2312b;--card:#fff}"
	"@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e8eb;--dim:#9ba1a9;--line:#33383f;--field:#20252a;--keep:#3fb27f;--boundary:#e0a93a;"
	"--reject:#6b727c;--mark:#ff7b72;--card:#1b2025}}"
	"*{box-sizing:border-box}body{margin:0 auto;padding:1.5rem;max-width:80rem;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}"
	"h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:1.5rem 0 .35rem}p{margin:.35rem 0}.dim{color:var(--dim)}"
	"nav a{margin-right:1rem}a{color:inherit}a:focus-visible,td:focus-visible,summary:focus-visible{outline:2px solid var(--fg);outline-offset:-2px}"
	".sum{display:flex;flex-wrap:wrap;gap:.75rem;margin:1rem 0}.sum div{background:var(--field);border-radius:6px;padding:.5rem .9rem}.sum b{display:block;font-size:1.35rem}"
	"table{border-collapse:collapse;width:100%}th,td{border-bottom:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
	"th{font-weight:600}thead th{border-bottom:2px solid var(--line)}thead small{display:block;font-weight:400;color:var(--dim)}"
	".grid{table-layout:fixed}.grid>thead>tr>th:first-child,.grid>tbody>tr>th:first-child{width:11rem;font-weight:400}td.c{position:relative}td.c small{display:block;color:var(--dim)}"
	".bar{position:relative;display:block;height:12px;margin:.15rem 0;background:var(--field);border-radius:2px}.bar i{position:absolute;top:0;bottom:0;border-radius:2px}"
	".bar .one,.bar .at{position:absolute;top:-2px;bottom:-2px;width:0;border-left:1px solid var(--dim)}.bar .at{border-left:2px dashed var(--mark)}"
	".keep .bar i{background:var(--keep)}.boundary .bar i{background:var(--boundary)}.reject .bar i{background:var(--reject)}"
	".keep b{color:var(--keep)}.boundary b{color:var(--boundary)}"
	".ev{display:none;position:absolute;z-index:9;left:0;top:100%;width:36rem;max-width:92vw;max-height:26rem;overflow:auto;background:var(--card);"
	"border:1px solid var(--line);border-radius:6px;box-shadow:0 6px 24px #0005;padding:.6rem .8rem;font-size:13px}.r .ev{left:auto;right:0}"
	"td.c:hover .ev,td.c:focus .ev{display:block}td.c:hover .ev{z-index:10}.ev td,.ev th{padding:.15rem .4rem;font-size:12.5px}.ev dl{display:grid;grid-template-columns:auto 1fr;"
	"gap:.1rem .8rem;margin:.3rem 0}.ev dt{color:var(--dim)}.ev dd{margin:0;overflow-wrap:anywhere}code{font:12.5px ui-monospace,monospace;overflow-wrap:anywhere}"
	".key span{display:inline-block;margin-right:1.2rem}.key i{display:inline-block;width:1.6rem;height:10px;border-radius:2px;margin-right:.35rem}"
	".key .t{width:0;height:14px;border-left:2px dashed var(--mark);border-radius:0;vertical-align:middle}details{margin:.4rem 0}summary{cursor:pointer}"
	"@media print{.ev{display:none!important}}@media(max-width:50rem){body{padding:.75rem}.grid>thead>tr>th:first-child,.grid>tbody>tr>th:first-child{width:6.5rem}}";

/* Text of a file, as text of a page. */
static enum status put(struct page *p, const char *text, struct error *err)
{
	for (; *text; text++) {
		const char *entity = *text == '&' ? "&amp;" : *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '"' ? "&quot;" : NULL;
		char c = (unsigned char)*text < 32 || *text == 127 ? ' ' : *text;
		TRY(entity ? buf_puts(p->out, entity, err) : buf_append(p->out, &c, 1, err));
	}
	return STATUS_OK;
}

static enum status put_row(struct page *p, const char *name, const char *text, struct error *err)
{
	TRY(buf_printf(p->out, err, "<dt>%s</dt><dd>", name));
	TRY(put(p, text, err));
	return buf_puts(p->out, "</dd>", err);
}

/* Percent of a bar's field. */
static double place(const struct page *p, double speedup)
{
	double at = 100 * (speedup - SCALE_LOW) / (p->scale - SCALE_LOW);
	return at > 0 ? at < 100 ? at : 100 : 0;
}

static void find_scale(struct page *p)
{
	p->scale = p->results->keep + 0.2 > SCALE_LEAST ? p->results->keep + 0.2 : SCALE_LEAST;
	for (int i = 0; i < p->grid.rows; i++)
		for (int d = 0; d < p->grid.degrees; d++) {
			const struct result_candidate *best = p->grid.row[i].at[d] ? grid_best(p->grid.row[i].at[d]) : NULL;
			if (best && best->timing.pairs && best->timing.speedup > p->scale) p->scale = best->timing.speedup;
		}
	if (p->scale > SCALE_MOST) p->scale = SCALE_MOST;
}

static enum status put_bar(struct page *p, double speedup, struct error *err)
{
	double one = place(p, 1), end = place(p, speedup), left = one < end ? one : end, width = one < end ? end - one : one - end;
	return buf_printf(p->out, err, "<span class=bar aria-hidden=true><i style=\"left:%.2f%%;width:%.2f%%\"></i><span class=one style=\"left:%.2f%%\"></span>"
	                  "<span class=at style=\"left:%.2f%%\"></span></span>", left, width, one, place(p, p->results->keep));
}

static enum status put_launches(struct page *p, const struct result_candidate *c, struct error *err)
{
	if (!c->observed.known) return put_row(p, "kernels seen", c->resolved.kernel[0] ? "not told by this back end; the dispatch says what it took" : "it never ran", err);
	TRY(buf_puts(p->out, "<dt>kernels seen</dt><dd>", err));
	for (int i = 0; i < c->observed.count; i++) {
		const struct kernel_launch *l = &c->observed.item[i];
		TRY(buf_puts(p->out, i ? "<br><code>" : "<code>", err));
		TRY(put(p, l->name, err));
		TRY(buf_printf(p->out, err, "</code> grid %ux%ux%u, block %ux%ux%u, %u bytes shared", l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
		               l->shared_bytes));
	}
	return buf_puts(p->out, "</dd>", err);
}

static enum status put_evidence(struct page *p, const struct result_candidate *c, struct error *err)
{
	char text[2 * RESULTS_TEXT], line[4 * RESULTS_TEXT];
	const struct result_check *k = &c->check;
	TRY(buf_puts(p->out, "<dl>", err));
	TRY(put_row(p, "asked for", grid_variant_text(&c->requested, text), err));
	if (c->resolved.kernel[0]) TRY(put_row(p, "taken", grid_variant_text(&c->resolved, text), err));
	if (c->timing.pairs) {
		snprintf(line, sizeof line, "%.2f us against %.2f us, %d pairs%s", c->timing.us, c->timing.baseline_us, c->timing.pairs, c->timing.steady ? "" : ", not steady");
		TRY(put_row(p, "time", line, err));
	}
	TRY(put_row(p, "verdict", grid_why(c, text), err));
	if (grid_chain_text(c, text)[0]) TRY(put_row(p, "in the chain", text, err));
	if (k->values) {
		snprintf(line, sizeof line, "relative L2 %.3g (bound %.3g), largest %.3g (bound %.3g), %lld values", k->error.l2, k->bound.l2, k->error.max, k->bound.max,
		         (long long)k->values);
		TRY(put_row(p, "error", line, err));
		snprintf(line, sizeof line, "%s over %d runs%s%s%s", k->repeatable ? "the same bits" : "other bits", k->repeats, k->same_bits ? ", those of the baseline" : "",
		         k->hash[0] ? ", hash " : "", k->hash);
		TRY(put_row(p, "repeats", line, err));
	}
	TRY(put_launches(p, c, err));
	return buf_puts(p->out, "</dl>", err);
}

/* All candidates of a problem in a few words each. */
static enum status put_candidates(struct page *p, const struct result_problem *problem, struct error *err)
{
	char text[2 * RESULTS_TEXT];
	TRY(buf_puts(p->out, "<table><tr><th>candidate<th>verdict<th>why</tr>", err));
	for (int i = 0; i < problem->candidates; i++) {
		const struct result_candidate *c = &problem->candidate[i];
		if (c->outcome == OUTCOME_BASELINE) continue;
		TRY(buf_puts(p->out, "<tr><td>", err));
		TRY(put(p, grid_variant_text(&c->requested, text), err));
		TRY(buf_printf(p->out, err, "<td>%s<td>", outcome_name(c->outcome)));
		TRY(put(p, grid_why(c, text), err));
		if (grid_chain_text(c, text)[0]) TRY(buf_puts(p->out, "<br>", err));
		TRY(put(p, text, err));
		TRY(buf_puts(p->out, "</tr>", err));
	}
	return buf_puts(p->out, "</table>", err);
}

static enum status put_cell(struct page *p, const struct result_problem *problem, bool right, struct error *err)
{
	char text[2 * RESULTS_TEXT];
	if (!problem) return buf_puts(p->out, "<td class=dim>-</td>", err);
	const struct result_candidate *best = grid_best(problem);
	if (!best) {
		TRY(buf_puts(p->out, "<td class=dim>", err));
		TRY(put(p, problem->note[0] ? problem->note : problem->done ? "no candidate" : "not measured", err));
		return buf_puts(p->out, "</td>", err);
	}
	int id = p->next_id++;
	TRY(buf_printf(p->out, err, "<td class=\"c %s%s\" tabindex=0 aria-describedby=e%d>", outcome_name(best->outcome), right ? " r" : "", id));
	if (best->timing.pairs) TRY(put_bar(p, best->timing.speedup, err));
	if (best->timing.pairs) TRY(buf_printf(p->out, err, "<b>%.3f×</b> ", best->timing.speedup));
	TRY(buf_printf(p->out, err, "%s<small>", outcome_name(best->outcome)));
	TRY(put(p, grid_variant_text(&best->requested, text), err));
	if (!best->timing.pairs) {
		TRY(buf_puts(p->out, "<br>", err));
		TRY(put(p, grid_why(best, text), err));
	}
	TRY(buf_printf(p->out, err, "</small><div class=ev role=tooltip id=e%d><b>", id));
	TRY(put(p, result_problem_text(problem, text), err));
	TRY(buf_puts(p->out, "</b>", err));
	TRY(put_evidence(p, best, err));
	TRY(put_candidates(p, problem, err));
	return buf_puts(p->out, "</div></td>", err);
}

static enum status put_family_head(struct page *p, int row, struct error *err)
{
	const struct grid *g = &p->grid;
	char shape[RESULTS_TEXT];
	TRY(buf_puts(p->out, "<h3>", err));
	TRY(put(p, g->row[row].family, err));
	TRY(buf_puts(p->out, "</h3><table class=grid><thead><tr><th scope=col>rows</th>", err));
	for (int d = 0; d < g->degrees; d++) {
		const struct result_problem *any = NULL;
		for (int i = row; i < g->rows && !any && !strcmp(g->row[i].family, g->row[row].family); i++) any = g->row[i].at[d];
		TRY(buf_printf(p->out, err, "<th scope=col>TP%d<small>%s</small></th>", g->degree[d], any ? result_problem_shape(any, shape) : ""));
	}
	return buf_puts(p->out, "</tr></thead><tbody>", err);
}

static enum status put_grid(struct page *p, struct error *err)
{
	const struct grid *g = &p->grid;
	char text[RESULTS_TEXT];
	TRY(buf_printf(p->out, err, "<h2 id=speed>Speed-up of the best candidate</h2><p class=key><span><i style=\"background:var(--keep)\"></i>keep</span>"
	               "<span><i style=\"background:var(--boundary)\"></i>boundary</span><span><i style=\"background:var(--reject)\"></i>reject</span>"
	               "<span><i class=t></i>threshold %gx</span></p><p class=dim>Bars begin at 1x, the dispatch's own choice; a field goes from %gx to %.2fx. Point at a cell, or go "
	               "to it with Tab, for its evidence.</p>", p->results->keep, SCALE_LOW, p->scale));
	for (int i = 0; i < g->rows; i++) {
		bool first = !i || strcmp(g->row[i].family, g->row[i - 1].family), last = i + 1 == g->rows || strcmp(g->row[i].family, g->row[i + 1].family);
		if (first) TRY(put_family_head(p, i, err));
		TRY(buf_printf(p->out, err, "<tr><th scope=row>%s</th>", grid_row_text(&g->row[i], text)));
		for (int d = 0; d < g->degrees; d++) TRY(put_cell(p, g->row[i].at[d], 2 * d >= g->degrees, err));
		TRY(buf_puts(p->out, last ? "</tr></tbody></table>\n" : "</tr>\n", err));
	}
	return STATUS_OK;
}

static enum status put_chains(struct page *p, struct error *err)
{
	const struct results *r = p->results;
	if (r->chain_mode != CHAIN_ON) return STATUS_OK;
	TRY(buf_puts(p->out, "<h2 id=chains>In the chain of a layer's ops</h2><p>All that is confirmed together, against the defaults.</p><table><thead><tr><th>degree<th>rows"
	                     "<th>layers<th>kernels<th>defaults<th>with them<th>speed-up</tr></thead><tbody>", err));
	for (int i = 0; i < r->chains; i++) {
		const struct result_chain *c = &r->chain[i];
		TRY(buf_printf(p->out, err, "<tr><th scope=row>TP%d<td>%d<td>%d<td>%d<td>", c->world_size, c->rows, c->layers, c->entries));
		if (c->entries)
			TRY(buf_printf(p->out, err, "%.1f us<td>%.1f us<td>%.4f× <small>%.4f to %.4f</small></tr>\n", c->timing.baseline_us, c->timing.us, c->timing.speedup, c->timing.low,
			               c->timing.high));
		else TRY(buf_puts(p->out, "-<td>-<td>-</tr>\n", err));
	}
	return buf_puts(p->out, "</tbody></table>", err);
}

static enum status put_flips(struct page *p, struct error *err)
{
	char text[2 * RESULTS_TEXT];
	TRY(buf_printf(p->out, err, "<h2 id=flips>What flips between degrees</h2><p>%d of %d candidates that were decided at two degrees or more.</p>", p->flips.count,
	               p->flips.compared));
	if (!p->flips.count) return STATUS_OK;
	TRY(buf_puts(p->out, "<table><thead><tr><th>family<th>rows<th>candidate", err));
	for (int d = 0; d < p->grid.degrees; d++) TRY(buf_printf(p->out, err, "<th>TP%d", p->grid.degree[d]));
	TRY(buf_puts(p->out, "</tr></thead><tbody>", err));
	for (int i = 0; i < p->flips.count; i++) {
		const struct degree_flip *f = &p->flips.item[i];
		TRY(buf_puts(p->out, "<tr><td>", err));
		TRY(put(p, f->row->family, err));
		TRY(buf_printf(p->out, err, "<td>%s<td>", grid_row_text(f->row, text)));
		TRY(put(p, grid_variant_text(f->variant, text), err));
		for (int d = 0; d < p->grid.degrees; d++) {
			TRY(buf_printf(p->out, err, "<td class=\"%s\"><b>%s</b><br><small>", f->at[d] ? outcome_name(f->at[d]->outcome) : "dim",
			               f->at[d] ? outcome_name(f->at[d]->outcome) : "-"));
			if (f->at[d]) TRY(put(p, grid_why(f->at[d], text), err));
			TRY(buf_puts(p->out, "</small>", err));
		}
		TRY(buf_puts(p->out, "</tr>\n", err));
	}
	return buf_puts(p->out, "</tbody></table>", err);
}

static enum status put_reason(struct page *p, enum reason reason, struct error *err)
{
	char text[RESULTS_TEXT];
	TRY(buf_printf(p->out, err, "<details%s><summary><b>%s</b>: %d. %s</summary><table><thead><tr><th>candidate<th>where<th>[N x K] or heads<th>M<th>why</tr></thead><tbody>",
	               reason != REASON_SLOW ? " open" : "", reason_name(reason), p->rejects.of_reason[reason], reason_text(reason)));
	for (int i = 0; i < p->rejects.count; i++) {
		const struct reject_group *g = &p->rejects.item[i];
		if (g->reason != reason) continue;
		TRY(buf_puts(p->out, "<tr><td>", err));
		TRY(put(p, grid_variant_text(g->variant, text), err));
		TRY(buf_printf(p->out, err, "<td>TP%d ", g->place->world_size));
		TRY(put(p, g->place->family, err));
		TRY(buf_printf(p->out, err, "<td>%s<td>%s<td>", result_problem_shape(g->problem, text), g->rows));
		TRY(put(p, g->why, err));
		TRY(buf_puts(p->out, "</tr>\n", err));
	}
	return buf_puts(p->out, "</tbody></table></details>", err);
}

static enum status put_rejects(struct page *p, struct error *err)
{
	TRY(buf_puts(p->out, "<h2 id=rejections>Rejections</h2>", err));
	if (!p->rejects.count) TRY(buf_puts(p->out, "<p>None.</p>", err));
	for (int i = 0; i < REASON_COUNT; i++)
		if (p->rejects.of_reason[i]) TRY(put_reason(p, (enum reason)i, err));
	return STATUS_OK;
}

static enum status put_tile(struct page *p, int value, int of, const char *what, struct error *err)
{
	TRY(buf_printf(p->out, err, "<div><b>%d", value));
	if (of >= 0) TRY(buf_printf(p->out, err, " of %d", of));
	return buf_printf(p->out, err, "</b>%s</div>", what);
}

static enum status put_summary(struct page *p, struct error *err)
{
	const struct results *r = p->results;
	int kept = 0, done = 0, rejected = 0, candidates = 0;
	for (int i = 0; i < r->problems; i++) {
		const struct result_candidate *best = grid_best(&r->problem[i]);
		kept += best && best->outcome == OUTCOME_KEEP;
		done += r->problem[i].done;
		for (int c = 0; c < r->problem[i].candidates; c++) candidates += r->problem[i].candidate[c].outcome != OUTCOME_BASELINE;
	}
	for (int i = 0; i < REASON_COUNT; i++) rejected += p->rejects.of_reason[i];
	TRY(buf_puts(p->out, "<div class=sum>", err));
	TRY(put_tile(p, kept, r->problems, "problems with a faster kernel to keep", err));
	TRY(put_tile(p, rejected, candidates, "candidates rejected", err));
	TRY(put_tile(p, p->flips.count, p->flips.compared, "candidates flip between degrees", err));
	if (done < r->problems) TRY(put_tile(p, r->problems - done, -1, "problems are not finished", err));
	return buf_puts(p->out, "</div>", err);
}

static enum status put_head(struct page *p, struct error *err)
{
	const struct results *r = p->results;
	TRY(buf_puts(p->out, "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\"><title>Prescreen of ", err));
	TRY(put(p, r->model, err));
	TRY(buf_printf(p->out, err, "</title><style>%s</style></head><body><h1>Prescreen of ", style));
	TRY(put(p, r->model, err));
	TRY(buf_puts(p->out, "</h1><p class=dim>", err));
	TRY(put(p, r->model_type, err));
	TRY(buf_printf(p->out, err, ", %s, on ", dtype_name(r->dtype)));
	TRY(put(p, r->device, err));
	TRY(buf_puts(p->out, " ", err));
	TRY(put(p, r->flavour, err));
	TRY(buf_puts(p->out, " (", err));
	TRY(put(p, r->versions, err));
	TRY(buf_printf(p->out, err, "), %d host thread%s, tandem ", r->threads, r->threads == 1 ? "" : "s"));
	TRY(put(p, r->program, err));
	TRY(buf_printf(p->out, err, ". Kept from %gx on, slow below %gx. %.0f s%s.</p>", r->keep, r->reject, r->seconds, r->complete ? "" : ", not complete"));
	for (int i = 0; i < r->degrees; i++) {
		if (r->degree[i].legal) continue;
		TRY(buf_printf(p->out, err, "<p>TP%d is not possible: ", r->degree[i].world_size));
		TRY(put(p, r->degree[i].why_not, err));
		TRY(buf_puts(p->out, ".</p>", err));
	}
	return buf_puts(p->out, "<nav><a href=#speed>Speed-up</a><a href=#flips>Flips</a><a href=#rejections>Rejections</a></nav>", err);
}

enum status report_html(const struct results *results, struct buf *out, struct error *err)
{
	struct page p = {.results = results, .out = out};
	enum status st;
	TRY_GOTO(grid_init(&p.grid, results, err), end);
	TRY_GOTO(compare_degrees(&p.flips, &p.grid, err), end);
	TRY_GOTO(rejects_init(&p.rejects, results, err), end);
	find_scale(&p);
	TRY_GOTO(put_head(&p, err), end);
	TRY_GOTO(put_summary(&p, err), end);
	TRY_GOTO(put_grid(&p, err), end);
	TRY_GOTO(put_chains(&p, err), end);
	TRY_GOTO(put_flips(&p, err), end);
	TRY_GOTO(put_rejects(&p, err), end);
	st = buf_puts(out, "</body></html>\n", err);
end:
	rejects_fini(&p.rejects);
	degree_flips_fini(&p.flips);
	grid_fini(&p.grid);
	return st;
}
