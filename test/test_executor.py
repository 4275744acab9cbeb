"""The node's executor: does what rclpy's does, without asking every entity before every callback."""
import threading
import time

import pytest

rclpy = pytest.importorskip('rclpy')
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup  # noqa: E402
from rclpy.clock import Clock, ClockType  # noqa: E402
from rclpy.event_handler import SubscriptionEventCallbacks  # noqa: E402
from rclpy.executors import ExternalShutdownException  # noqa: E402
from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: E402
from rclpy.task import Future  # noqa: E402
from std_msgs.msg import String  # noqa: E402
from std_srvs.srv import Trigger  # noqa: E402

from oxygen_ros.node.executor import Executor  # noqa: E402

STEADY = Clock(clock_type=ClockType.STEADY_TIME)
LONG = 20.0


class Spun:
    def __init__(self):
        self.context = rclpy.Context()
        rclpy.init(args=[], context=self.context)
        self.executor = Executor(context=self.context)
        self.node = self.add('spun')

    def add(self, name):
        node = rclpy.create_node(name, context=self.context)
        self.executor.add_node(node)
        return node

    def until(self, condition, timeout=LONG):
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, 'it did not happen'
            self.executor.spin_once(timeout_sec=0.5)

    def close(self):
        self.executor.shutdown()
        for node in (self.node, *self.executor.get_nodes()):
            node.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture
def spun():
    spun = Spun()
    yield spun
    spun.close()


def test_every_kind_of_entity_is_served(spun):
    seen, node, other = set(), spun.node, spun.add('other')

    def serve(request, response):
        seen.add('service')
        response.success = True
        return response

    node.create_timer(0.01, lambda: seen.add('timer'), clock=STEADY)
    guard = node.create_guard_condition(lambda: seen.add('guard'))
    node.create_subscription(String, 'words', lambda _: seen.add('subscription'), 10)
    node.create_subscription(  # no publisher of ours gives what this one wants
        String, 'words', print, QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE),
        event_callbacks=SubscriptionEventCallbacks(incompatible_qos=lambda _: seen.add('event')))
    node.create_service(Trigger, 'pull', serve)
    client = other.create_client(Trigger, 'pull')
    words = other.create_publisher(String, 'words', 10)
    other.create_publisher(String, 'words', QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT))
    spun.until(lambda: client.service_is_ready() and words.get_subscription_count() == 2)
    guard.trigger()
    words.publish(String(data='a'))
    answer = client.call_async(Trigger.Request())
    spun.until(lambda: seen == {'timer', 'guard', 'subscription', 'event', 'service'} and answer.done())
    assert answer.result().success


def test_what_another_thread_reports_is_next_whatever_else_is_ready(spun):
    order, node = [], spun.node

    def beat(name):
        order.append(name)
        guard.trigger()

    guard = node.create_guard_condition(lambda: order.append('guard'))
    for name in ('first', 'second', 'third'):  # all of them are ready at once
        node.create_timer(0.0, lambda name=name: beat(name), clock=STEADY)
    spun.until(lambda: 'third' in order)
    assert order == ['first', 'guard', 'second', 'guard', 'third']


def test_what_keeps_being_reported_keeps_nothing_else_from_its_turn(spun):
    order, node = [], spun.node

    def report():
        order.append('guard')
        guard.trigger()

    guard = node.create_guard_condition(report)
    for name in ('first', 'second'):
        node.create_timer(0.0, lambda name=name: order.append(name), clock=STEADY)
    guard.trigger()
    spun.until(lambda: len(order) >= 12)
    assert order.count('first') >= 2 and order.count('second') >= 2


def test_a_coroutine_waits_while_others_are_served_but_not_its_own_group(spun):
    order, waits, node = [], Future(), spun.node
    exclusive, free = MutuallyExclusiveCallbackGroup(), ReentrantCallbackGroup()

    async def slow():
        once.cancel()
        order.append('begun')
        await waits
        order.append('ended')

    once = node.create_timer(0.0, slow, callback_group=exclusive, clock=STEADY)
    blocked = node.create_guard_condition(lambda: order.append('blocked'), callback_group=exclusive)
    beats = node.create_guard_condition(lambda: order.append('beat'), callback_group=free)
    spun.until(lambda: order == ['begun'])
    blocked.trigger()
    for count in (1, 2, 3):
        beats.trigger()
        spun.until(lambda count=count: order.count('beat') == count)
    waits.set_result(None)
    spun.until(lambda: 'blocked' in order)
    assert order == ['begun', *['beat'] * 3, 'ended', 'blocked']


def test_a_coroutine_may_wait_for_a_task_that_comes_after_it(spun):
    ended = []

    async def first():
        ended.append(await spun.executor.create_task(second))

    async def second():
        return 'second'

    spun.executor.create_task(first)
    began = time.monotonic()
    while not ended:
        spun.executor.spin_once(timeout_sec=LONG)
    assert ended == ['second'] and time.monotonic() - began < LONG / 2


def test_an_error_reaches_the_caller_and_takes_nothing_else_with_it(spun):
    ran, node = [], spun.node

    def fail():
        raise ArithmeticError('of mine')

    guards = [node.create_guard_condition(callback)
              for callback in (fail, lambda: ran.append(1), fail, lambda: ran.append(2))]
    spun.executor.spin_once(timeout_sec=0.0)
    for guard in guards:
        guard.trigger()
    errors = 0
    while len(ran) < 2 or errors < 2:
        try:
            spun.executor.spin_once(timeout_sec=LONG)
        except ArithmeticError:
            errors += 1
    assert sorted(ran) == [1, 2]


def test_what_another_destroyed_in_the_same_batch_is_not_run(spun):
    ran, node = [], spun.node
    guards = {}

    def first(name, other):
        ran.append(name)
        node.destroy_guard_condition(guards[other])

    guards['a'] = node.create_guard_condition(lambda: first('a', 'b'))
    guards['b'] = node.create_guard_condition(lambda: first('b', 'a'))
    timer = node.create_timer(0.001, lambda: ran.append('timer'), clock=STEADY)
    canceller = node.create_timer(0.001, timer.cancel, clock=STEADY)
    time.sleep(0.005)  # both timers are due
    for guard in guards.values():
        guard.trigger()
    spun.until(lambda: timer.is_canceled() and not spun.executor._ready)
    node.destroy_timer(canceller)
    for _ in range(5):
        spun.executor.spin_once(timeout_sec=0.01)
    assert len([name for name in ran if name in 'ab']) == 1 and ran.count('timer') <= 1


def test_entities_come_and_go_in_other_threads_while_it_waits(spun):
    """Also where the wait set points at what is being destroyed."""
    heard, stop, node = [], threading.Event(), spun.node

    def churn():
        while not stop.is_set():
            subscription = node.create_subscription(
                String, 'churn', lambda _: None, 1,
                event_callbacks=SubscriptionEventCallbacks(incompatible_qos=lambda _: None))
            timer = node.create_timer(0.001, lambda: heard.append('timer'), clock=STEADY)
            node.destroy_subscription(subscription)
            time.sleep(0.002)
            node.destroy_timer(timer)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    spun.until(lambda: len(heard) > 100)
    stop.set()
    for thread in threads:
        thread.join()


def test_another_thread_may_end_the_wait(spun):
    spinning = threading.Thread(target=spun.executor.spin)
    spinning.start()
    time.sleep(0.05)
    spun.executor.shutdown()
    spinning.join(LONG)
    assert not spinning.is_alive()
    spun.executor.spin_once(timeout_sec=LONG)  # returns at once


def test_the_end_of_the_context_ends_the_wait(spun):
    threading.Timer(0.1, lambda: rclpy.shutdown(context=spun.context)).start()
    with pytest.raises(ExternalShutdownException):
        while True:
            spun.executor.spin_once(timeout_sec=LONG)


def test_it_spins_until_a_future_is_done(spun):
    done = Future()
    threading.Timer(0.1, done.set_result, ['value']).start()
    spun.executor.spin_until_future_complete(done, timeout_sec=LONG)
    assert done.result() == 'value'
    spun.executor.spin_until_future_complete(Future(), timeout_sec=0.05)


def test_without_anything_to_do_it_returns_in_time(spun):
    began = time.monotonic()
    for _ in range(3):
        spun.executor.spin_once(timeout_sec=0.05)
    assert time.monotonic() - began < LONG / 2
