"""``oxygen ask``: one question to the running node, the answer as it is made."""
from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Callable

import rclpy
import tyro
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from std_msgs.msg import String

from oxygen_ros.contract import TOPIC
from oxygen_ros.interrupts import interrupts
from oxygen_ros.msg import SpeechRequest, SpeechToken


def ask(
    question: tyro.conf.Positional[str],
    namespace: str = 'oxygen',
    template: str = '{}\nAnswer: ',
    channel: str = 'question',
    max_tokens: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    deadline: float = 0.0,
    timeout: float = 30.0,
) -> int:
    """Ask the robot something about what it sees; the answer is printed as it is made.

    Runs in the ROS domain of the environment (ROS_DOMAIN_ID), as every ROS program does. Ctrl-C cancels the question.
    Exit code: 0 answered, 1 not answered (the reason is on stderr), 2 when it cannot ask.

    Args:
        question: what to ask, e.g. "where is the red cube?".
        namespace: ROS namespace of the node.
        template: how the question ({}) becomes the text that the model continues; the default suits the tabletop.
        channel: label of the request; the node's priorities go by it.
        max_tokens: most tokens to generate; 0 = the node's own limit.
        temperature: 0 takes the likeliest token each time, more samples.
        seed: seed of the sampling.
        stop: end the answer before any of these strings.
        deadline: seconds after which the node gives up; 0 = never.
        timeout: seconds to wait for the node, and then for each next piece of the answer.
    """
    if why := ('--max-tokens: 0 to 4294967295' if not 0 <= max_tokens < 1 << 32 else
               '--seed: 0 to 18446744073709551615' if not 0 <= seed < 1 << 64 else
               '' if re.fullmatch(TOPIC, namespace) else f'--namespace: {namespace!r} is no name in ROS'):
        print(f'oxygen ask: {why}', file=sys.stderr)
        return 2
    request = SpeechRequest(
        request_id=f'ask-{uuid.uuid4().hex[:8]}', channel=channel, seed=template.replace('{}', question),
        max_tokens=max_tokens, temperature=temperature, random_seed=seed, stop=list(stop), deadline=deadline)
    context = rclpy.Context()
    rclpy.init(args=[], context=context)
    try:
        with interrupts() as check:
            return _Conversation(namespace, context, check).hold(request, timeout)
    finally:
        rclpy.try_shutdown(context=context)


def printable(text: str) -> str:
    """``text`` with a mark in place of each character that could command the terminal; as long as before."""
    return ''.join(c if c.isprintable() or c in '\n\t' else '\N{REPLACEMENT CHARACTER}' for c in text)


class _Conversation:
    """Sends one request and prints its answer."""

    def __init__(self, namespace: str, context: rclpy.Context, check: Callable[[], None]) -> None:
        self._check = check
        self._namespace = namespace.strip('/')
        # Without services: their names would be new each time, so that no SROS 2 policy could allow them.
        self._node = rclpy.create_node(
            f'ask_{uuid.uuid4().hex[:8]}', namespace=self._namespace, context=context, start_parameter_services=False,
            parameter_overrides=[Parameter('start_type_description_service', value=False)])
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self._node)
        self._ask = self._node.create_publisher(SpeechRequest, 'ask', 10)
        self._cancel = self._node.create_publisher(String, 'cancel', 10)
        self._node.create_subscription(SpeechToken, 'speech', self._hear, 100)
        self._request_id = ''
        self._heard: SpeechToken | None = None
        self._printed = 0

    def hold(self, request: SpeechRequest, timeout: float) -> int:
        self._request_id = request.request_id
        # Both directions must be connected, or the first words would be lost.
        if not self._spin(lambda: self._ask.get_subscription_count() and self._node.count_publishers('speech'),
                          timeout):
            return self._fail(f'no node listens on /{self._namespace}/ask: is it running, in this ROS_DOMAIN_ID?')
        self._ask.publish(request)
        try:
            while not self._final():
                before = self._printed
                if not self._spin(lambda before=before: self._final() or self._printed > before, timeout):
                    return self._fail(f'no answer within {timeout:g} s: is the node active, does it see its cameras?')
        except KeyboardInterrupt:
            self._cancel.publish(String(data=self._request_id))
            self._spin(self._final, 1.0)
            print()
            return 130
        print()
        if self._heard.finish_reason in ('stop', 'length'):
            return 0
        return self._fail(f'{self._heard.finish_reason}: {self._heard.detail or "the request ended early"}')

    def _hear(self, token: SpeechToken) -> None:
        if token.request_id == self._request_id:
            self._heard = token
            # The text is cumulative: a lost message is repaired by the next one.
            print(printable(token.text[self._printed:]), end='', flush=True)
            self._printed = len(token.text)

    def _final(self) -> bool:
        return self._heard is not None and self._heard.is_final

    def _spin(self, until: Callable[[], object], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not until():
            self._check()
            if time.monotonic() > deadline:
                return False
            self._executor.spin_once(0.05)
        return True

    def _fail(self, why: str) -> int:
        print(f'oxygen ask: {why}', file=sys.stderr)
        return 1
