"""One minute of soak of the real node, as a user runs it. Slopes and drift need a longer run on a quiet machine."""
import json

import pytest

pytest.importorskip('rclpy')

EXACT = ('KV bytes', 'messages', 'open descriptors', 'threads', 'shared-memory files', 'exit code')


@pytest.mark.timeout(240)
def test_a_busy_node_keeps_nothing_and_publishes_nothing_bad(start, tmp_path):
    report = tmp_path / 'soak.json'
    soak = start('soak', 'oxygen_ros.cli', 'bench', 'soak', '--minutes', '1', '--json', report, '--plot',
                 tmp_path / 'soak.png')
    assert soak.wait(200.0) in (0, 1), soak.output
    result = json.loads(report.read_text())
    failed = [verdict for verdict in result['verdicts'] if not verdict['holds']]
    assert not [verdict for verdict in failed if verdict['name'].startswith(EXACT)], result['found']
    assert sum(result['requests'].values()) > 10 and len(result['samples']) > 20
    assert (tmp_path / 'soak.png').stat().st_size > 10_000
