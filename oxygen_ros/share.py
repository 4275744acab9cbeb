"""Where the files that are installed beside the package lie: launch/ and config/."""
from __future__ import annotations

import os
import sys
from pathlib import Path


def share(path: str) -> Path:
    """The file ``path`` ('config/oxygen.yaml') of this package: of the source folder when run from there ("pip install
    -e"), else of the ROS prefix or virtual environment that it is installed in. FileNotFoundError when it is nowhere.
    """
    source = Path(__file__).resolve().parents[1]
    places = [source] if (source / 'package.xml').is_file() else []
    prefixes = [*filter(None, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)), sys.prefix]
    places += [Path(prefix) / 'share' / 'oxygen_ros' for prefix in dict.fromkeys(prefixes)]
    for place in places:
        if (place / path).is_file():
            return place / path
    raise FileNotFoundError(f'oxygen_ros has no {path}; looked in {", ".join(map(str, places))}')
