"""test/FIELD.md says which test keeps which field failure away; the tests must be there."""
import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = [line.split('|') for line in (HERE / 'FIELD.md').read_text().splitlines() if re.match(r'\| \d+ ', line)]


def test_every_row_names_tests_that_exist_or_says_why_it_cannot_apply():
    assert len(ROWS) == 53 and len({row[1] for row in ROWS}) == 53
    file = ''
    for _, number, _, kept_away_by, _ in ROWS:
        references = re.findall(r'`(?:(test_\w+\.py)(?:::)?)?([\w.]*?)(?:\[\w+\])?`', kept_away_by)
        assert any(path for path, _ in references) or 'not applicable' in kept_away_by, f'row{number}'
        for path, name in references:
            file = path or file
            source = (HERE / file).read_text()
            if name and '.' not in name:
                assert re.search(rf'def test_{name}\(', source), f'row{number}: no test_{name} in {file}'
