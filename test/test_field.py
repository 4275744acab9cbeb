"""test/FIELD.md says which test keeps which field failure away; the tests must be there."""
import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = [line.split('|') for line in (HERE / 'FIELD.md').read_text().splitlines() if re.match(r'\| \d+ ', line)]
FILES = {path.name: path.read_text() for path in HERE.glob('test_*.py')}
TESTS = set(re.findall(r'def test_(\w+)\(', '\n'.join(FILES.values())))


def test_every_row_names_tests_that_exist_or_says_why_it_cannot_apply():
    assert len(ROWS) >= 53, 'a row was lost'
    assert len({row[1] for row in ROWS}) == len(ROWS)
    for _, number, _, kept_away_by, _ in ROWS:
        names = re.findall(r'`([a-z_0-9]{12,}|test_\w+\.py)(?:\[\w+\])?`', kept_away_by)
        assert names or 'not applicable' in kept_away_by, f'row{number}'
        missing = [name for name in names if name not in TESTS and name not in FILES]
        assert not missing, f'row{number}: no test {", ".join(missing)}'
