"""The figures as tables for a terminal."""
from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from oxygen_ros.bench.results import STAGES


def brief(result: dict[str, Any], console: Console) -> None:
    """Print the few figures that tell whether all is well."""
    console.print(_frames(result['runs'] + result['references']), _verdicts(result['verdicts']))


def show(result: dict[str, Any], console: Console) -> None:
    """Print everything that a person compares."""
    w, c = result['workload'], result['ceilings']
    lengths = f'5..{w["tokens"]}' if w['mixed'] else w['tokens']
    console.print(
        f'{result["model"]}\n{result["machine"]}, {result["threads"]} threads, torch {result["torch"]}, load '
        f'{result["load_average"]:.1f} on {result["cores"]} cores, {result["clock"]} clock\n'
        f'{w["rate"]:g} requests per frame ({w["arrivals"]}), {lengths} tokens each, {w["per_frame"]} per frame; '
        f'{w["cameras"]} cameras, {w["prompt"]} prompt tokens\n'
        f'ceilings in this run: {c["gflop_per_s"]:.1f} GFLOP/s (best {c["best_gflop_per_s"]:.1f}), '
        f'{c["gbytes_per_s"]:.1f} GB/s copied (best {c["best_gbytes_per_s"]:.1f})', highlight=False)
    runs = result['runs'] + result['references']
    console.print(_frames(runs), _text(runs), _work(runs), _stages(runs), _batches(result['decode_by_batch']),
                  _verdicts(result['verdicts']))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify='left')
    for i, column in enumerate(columns):
        table.add_column(column, justify='right' if i else 'left', no_wrap=not i)
    return table


def _frames(runs: list[dict[str, Any]]) -> Table:
    table = _table('frames (ms are medians)', 'mode', 'frame', 'p99', 'chunk', 'chunks/s', 'actions/s', 'tokens/s',
                   'late')
    for r in runs:
        table.add_row(
            r['mode'], f'{r["frame_ms_p50"]:.1f}', f'{r["frame_ms_p99"]:.1f}', f'{r["chunk_ms_p50"]:.1f}',
            f'{r["chunks_per_s"]:.2f}', f'{r["actions_per_s"]:.1f}', f'{r["tokens_per_s"]:.1f}',
            f'{r["deadline_misses"]}')
    table.caption = f'actions/s = chunks/s x horizon {runs[0]["horizon"]}'
    return table


def _text(runs: list[dict[str, Any]]) -> Table:
    table = _table('text (ms are medians)', 'mode', '1st token', 'request', 'decode step', 'batch',
                   'steps per sentence', 'drafts right')
    for r in runs:
        if r['tokens_per_frame']:
            table.add_row(
                r['mode'], f'{r["time_to_first_token_ms_p50"]:.0f}', f'{r["request_ms_p50"]:.0f}',
                f'{r["decode_step_ms_p50"]:.1f}', f'{r["requests_per_decode_step"]:.1f}',
                f'{r["decode_steps_per_sentence"]:.1f}', f'{r["draft_acceptance"]:.0%}')
    return table


def _work(runs: list[dict[str, Any]]) -> Table:
    table = _table('work per frame', 'mode', 'rows', 'GFLOP', 'GB', 'KV copied, MB', 'of floor', 'bookkeeping')
    for r in runs:
        table.add_row(r['mode'], f'{r["rows_per_frame"]:.0f}', f'{r["gflop_per_frame"]:.3g}',
                      f'{r["gbytes_per_frame"]:.3g}', f'{r["kv_bytes_copied_per_frame"] / 1e6:.1f}',
                      f'{r["share_of_floor"]:.0%}', f'{r["bookkeeping_share"]:.2%}')
    return table


def _stages(runs: list[dict[str, Any]]) -> Table:
    table = _table('stages: ms per frame (share of the counted floor)', 'mode', *STAGES)
    for r in runs:
        table.add_row(r['mode'], *(f'{s["ms_per_frame"]:.1f} ({s["share"]:.0%})' if s['ms_per_frame'] else '-'
                                   for s in (r['stages'][stage] for stage in STAGES)))
    return table


def _batches(rows: list[dict[str, Any]]) -> Table:
    by_weights = {weights: [r for r in rows if r['weights'] == weights] for weights in dict.fromkeys(
        r['weights'] for r in rows)}
    table = _table('decode step: ms (share of its floor)', 'requests', *(str(r['batch']) for r in by_weights['exact']))
    for weights, steps in by_weights.items():
        table.add_row(f'{weights} weights', *(f'{r["ms_p50"]:.2f} ({r["share"]:.0%})' for r in steps))
    return table


def _verdicts(verdicts: list[dict[str, Any]]) -> Table:
    table = _table('what must hold', 'figure', 'value', 'middle half', 'bound', '')
    for v in verdicts:
        spread = f'{v["low"]:.3f} - {v["high"]:.3f}' if 'low' in v else ''
        table.add_row(v['name'], f'{v["value"]:.4g}', spread, f'{">=" if v["at_least"] else "<="} {v["bound"]:g}',
                      'holds' if v['holds'] else '[bold red]NO')
    return table


if __name__ == '__main__':  # the few figures of a file that was written before
    import json
    import sys
    with open(sys.argv[1]) as file:
        brief(json.load(file), Console(width=100))
