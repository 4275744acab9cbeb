"""The troubleshooting page quotes what the program really says."""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [line for line in (ROOT / 'docs' / 'troubleshooting.md').read_text().splitlines()
        if line.startswith('| `') or line.startswith('| finish')]
# What stands for something else in a quotation: dots, numbers, names between blanks, lists.
VARIABLE = re.compile(r"\.\.\.|'\w+'|[0-9][0-9.]*|\[.*?\]|\(|: |elbow|front|publish_rate(?:_hz)?|torch|configure|"
                      r'oxygen_ros\.msg|RELIABILITY|position$|\bq01\b')


def sources() -> str:
    """All of the package's text, string literals that go on in the next line joined."""
    text = '\n'.join(path.read_text() for path in (ROOT / 'oxygen_ros').rglob('*.py') if 'msg' not in path.parts)
    text = re.sub(r"'\s*\n\s*f?'", '', text)
    return re.sub(r'\{[^{}]*\}', '\0', text).replace('"', "'")


SOURCES = sources()


@pytest.mark.parametrize('row', ROWS, ids=lambda row: re.findall('`(.+?)`', row)[0][:40])
def test_a_quoted_message_is_in_the_source(row):
    for quoted in re.findall('`(.+?)`', row.split('|')[1]):
        for part in VARIABLE.split(quoted.replace('"', "'")):
            words = part.strip(" ,:;?'")
            if len(words) > 6:
                assert words in SOURCES, f'nothing says {words!r}'
