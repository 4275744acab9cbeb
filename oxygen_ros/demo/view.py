"""What the demo shows while it runs: a live panel in a terminal, a plain line now and then anywhere else."""
from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oxygen_ros.demo.figures import rate_hz
from oxygen_ros.demo.observer import Observer

_LAST = 100  # messages that the shown rate is taken over


class View:
    """A context manager; ``refresh`` as often as you like, it draws as often as is useful."""

    def __init__(self, observer: Observer, seconds: float, console: Console, hint: str) -> None:
        self._observer = observer
        self._seconds = seconds
        self._console = console
        self._hint = hint
        self._period = 0.25 if console.is_terminal else 2.0
        self._due = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        else:
            self._console.print(self._hint)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def refresh(self) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._period
        if self._live:
            self._live.update(self._panel(), refresh=True)
        else:
            self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def _elapsed(self) -> float:
        figures = self._observer.figures
        return self._observer.now() - figures.began if figures else 0.0

    def _line(self) -> str:
        observer, status = self._observer, self._observer.status
        rate = rate_hz(observer.figures.published[-_LAST:])
        parts = [f'{self._elapsed():5.1f} s', f'actions {rate:.1f} Hz', f'chunks {observer.figures.chunks}']
        if status:
            parts += [f'{status.tokens_per_second:.0f} tokens/s', f'live {status.live_requests}']
        if observer.said:
            parts.append(f'"{observer.said[-1]}"')
        return '  '.join(parts)

    def _panel(self) -> Panel:
        observer, status, figures = self._observer, self._observer.status, self._observer.figures
        numbers = Table.grid(padding=(0, 3))
        numbers.add_row('actions', f'{rate_hz(figures.published[-_LAST:]):.2f} Hz',
                        'stale', str(figures.stale), 'non-finite', str(figures.nonfinite))
        if status:
            stages = (status.vision_time, status.prefill_time, status.act_time, status.speak_time)
            numbers.add_row('cycle', f'{status.cycle_time * 1e3:.0f} ms',
                            'see, read, act, speak', ' + '.join(f'{stage * 1e3:.0f}' for stage in stages) + ' ms',
                            'budget', f'{status.budget * 1e3:.0f} ms')
            numbers.add_row('cycles', str(status.cycles), 'prefills', str(status.prefills),
                            'tokens', f'{status.tokens_per_second:.0f} /s')
            numbers.add_row('requests', f'{status.live_requests} live, {status.queued_requests} queued',
                            'KV in use', f'{status.kv_bytes / 1e6:.2f} of {status.kv_bytes_capacity / 1e6:.2f} MB')
        numbers.add_row('tasks', f'{observer.successes} of {observer.episodes} done')
        speech = [Text(f'task  {observer.task}', style='bold')]
        speech += [Text(f'  “{sentence}”', style='dim') for sentence in list(observer.said)[:-1]]
        speech += [Text(f'  “{sentence}”') for sentence in list(observer.said)[-1:]]
        if observer.question:
            speech.append(Text(f'asked  {observer.question}  →  {observer.answer}', style='cyan'))
        title = f'oxygen demo  {self._elapsed():.0f} of {self._seconds:g} s'
        return Panel(Group(numbers, Text(), *speech, Text(), Text(self._hint, style='dim')), title=title)
