"""The fixed-shape passes that CUDA graphs replay, run uncaptured: the same chunks and texts as the ragged ones."""
import hypothesis.strategies as st
import numpy as np
from engines import chunk_alone
from hypothesis import example, given, settings
from test_engine_exact import CROWD, PROGRAMS, check_text, run


@settings(max_examples=25, deadline=None)
@given(PROGRAMS, st.booleans())
@example([*CROWD, ('observe', 1), *CROWD, ('step', 30), ('observe', 1), *CROWD], True)
@example([('observe', 3), *CROWD[:3], ('observe', 4), *CROWD[:3], ('step', 2), ('observe', 5), ('cancel', 1)], False)
def test_fixed_shapes_give_the_same_chunks_and_texts(program, ride):
    rig, asked, seen = run(program, graphs='always', ride=ride, draft=ride)
    for number in seen:
        np.testing.assert_allclose(rig.chunk(number), chunk_alone(number), rtol=0, atol=2e-5)
    check_text(rig, asked)
    graphs = rig.engine.net.graphs
    assert graphs.pool is rig.engine.pool
    assert graphs._denoise, 'chunks came from a fixed window'
    assert all(home % rig.engine.pool.align == 0 for home in graphs._denoise)
    assert bool(graphs._decode) == (rig.report.decode_steps > 0)
    assert rig.engine.pool.used == rig.engine._current.prefix.rows


def test_warm_up_makes_every_pass_that_a_cycle_needs():
    from engines import Rig, observation

    from oxygen_ros.engine.wire import Ask
    rig = Rig(graphs='always', max_live=4)
    rig.engine.warm_up()
    graphs = rig.engine.net.graphs
    made = set(graphs._decode), set(graphs._vision), set(graphs._denoise)
    for number in range(1, 9):
        rig.engine.ask(Ask(f'{number}', 'Subtask: ', max_tokens=9))
        rig.engine.act(observation(number))
        rig.engine.step()
    assert made == (set(graphs._decode), set(graphs._vision), set(graphs._denoise))
    assert made[0] == {1, 2, 4, 8, 16, 32, 64} and len(made[2]) > 2
