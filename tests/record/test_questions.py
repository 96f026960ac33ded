"""Questions: what may be asked and awaited, and where."""

import asyncio
import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch
from jitbatch import jitbatch as decorated
from jitbatch.util.errors import ControlFlowError, OutputError, QuestionError


async def ask(tree: Any) -> Any:
    return await jitbatch.value(tree)


def test_answers_are_numbers_and_numpy_arrays() -> None:
    found = jitbatch.run(ask({"a": jnp.float32(0.1), "b": [jnp.arange(2), True], "c": 3, "d": jnp.bfloat16(0.5)}))
    assert found["a"] == pytest.approx(0.1)
    assert [type(found[name]) for name in "acd"] == [float, int, float]
    assert type(found["b"][0]) is np.ndarray
    assert found["b"][1] is True


def test_a_number_is_answered_alike_in_a_batch_and_alone() -> None:
    @decorated
    async def echo(one: Any, x: Any) -> Any:
        return one * (await jitbatch.value(0.1)) + 0 * x

    assert echo.batch(1.0, [2.0])[0] == jitbatch.run(echo(1.0, 2.0))


@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap, lambda f: jax.jit(jax.grad(f))])
def test_run_inside_of_a_transformation(transformation: Any) -> None:
    with pytest.raises(QuestionError, match=r"asked at .* inside of jax\.(vmap|jit).* for a traced float32\[\]"):
        transformation(lambda x: jitbatch.run(ask(x)))(jnp.ones(2) if transformation is jax.vmap else 1.0)


def asks(x: Any) -> Any:
    return x if jitbatch.value(x > 0) else -x


def runs(x: Any) -> Any:
    return jitbatch.run(ask(x))


BODIES = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x]))[0],
    "grad": jax.grad,
    "cond": lambda f: lambda x: jax.lax.cond(True, f, f, x),
    "loop": lambda f: lambda x: jax.lax.fori_loop(0, 2, lambda _, y: f(y), x),
    "decorated": lambda f: lambda x: decorated(lambda one, y: one * f(y))(1.0, x),
}


@pytest.mark.parametrize("wrap", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (asks, r"is not awaited, at .*test_questions.py:\d+"),
        (runs, r"jitbatch.(run|value) was .*test_questions.py:\d+"),
    ],
)
def test_bodies_that_cannot_ask(wrap: Any, body: Any, message: str) -> None:
    """They are refused by name, with the line and the sample."""

    @decorated
    async def sample(one: Any, x: Any) -> Any:
        return wrap(body)(x) + one

    with pytest.raises(QuestionError, match=message) as raised:
        sample.batch(1.0, [2.0])
    told = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    assert any("sample 0 of " in text for text in told)


FORGOTTEN: dict[str, Any] = {
    "if": lambda one, asked: one if asked else 2,
    "==": lambda one, asked: one if asked == 1 else 2,
    "!=": lambda one, asked: one if asked != 1 else 2,
    "<": lambda one, asked: one if asked < 1 else 2,
    "*": lambda one, asked: asked * one,
    "+": lambda one, asked: 1 + asked,
    "-": lambda one, asked: -asked,
    "[]": lambda one, asked: asked[0],
    "in": lambda one, asked: one if asked in {1, 2} else 2,
    "range": lambda one, asked: [one for _ in range(asked)],
    "an index": lambda one, asked: [one, one][asked],
    "an attribute": lambda one, asked: asked.astype(int),
    "an array": lambda one, asked: jnp.asarray(asked),
    "a jnp function": lambda one, asked: jnp.add(one, asked),
    "an argument": lambda one, asked: decorated(lambda one, x: one * x)(one, asked),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_question_that_is_not_awaited(name: str) -> None:
    @decorated
    async def sample(one: Any, x: Any) -> Any:
        return FORGOTTEN[name](one, jitbatch.value(x))

    with pytest.raises(QuestionError, match=r"not awaited, at .*test_questions.py:\d+.*await") as raised:
        sample.batch(1.0, [1])
    assert any("sample 0 of" in text for text in (str(raised.value), *getattr(raised.value, "__notes__", ())))


@decorated
async def inner(one: Any, x: Any) -> Any:
    return x if await jitbatch.value(x > one) else one


unawaited: Any = inner

WRONG_AWAITS: dict[str, tuple[Any, str]] = {
    "used": (lambda one, x: unawaited(one, x) * 2, r"sample 0 of .* not awaited, at .*questions.py:\d+. Write `await"),
    "an attribute": (
        lambda one, x: unawaited(one, x).sum(),
        r"sample 0 of .* not awaited, at .*questions.py:\d+. Write `aw",
    ),
    "in a jit": (lambda one, x: jax.jit(ask)(x), r"sample 0 of .*questions.py:\d+.* cannot be the body of a jit"),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("name", WRONG_AWAITS)
def test_a_coroutine_that_is_not_awaited(name: str) -> None:
    use, message = WRONG_AWAITS[name]

    @decorated
    async def sample(one: Any, x: Any) -> Any:
        return use(one, x)

    with pytest.raises(QuestionError, match=message):
        sample.batch(1.0, [2.0])
    gc.collect()  # the warning comes when the coroutine is freed


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_coroutine_that_is_returned() -> None:
    @decorated
    async def sample(one: Any, x: Any) -> Any:
        return inner(one, x)

    with pytest.raises(OutputError, match=r"for sample 0 of .*It is not awaited: write `await"):
        sample.batch(1.0, [2.0])
    gc.collect()


def test_sleep_outside_of_a_loop() -> None:
    @decorated
    async def sample(one: Any, x: Any) -> Any:
        await asyncio.sleep(0.1)
        return one * x

    with pytest.raises(QuestionError, match=r"sample 0 of .* awaits something of asyncio at .*questions.py:\d+"):
        sample.batch(1.0, [2.0])


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_control_flow_on_an_array_names_value(is_asynchronous: bool) -> None:
    def plain(one: Any, x: Any) -> Any:
        return one if x > 1 else x

    async def asynchronous(one: Any, x: Any) -> Any:
        return one if x > 1 else x

    with pytest.raises(ControlFlowError, match=r"await jitbatch.value\(...\)` in an `async def`"):
        decorated(asynchronous if is_asynchronous else plain).batch(1.0, [2.0])


def test_run_under_grad_answers_with_the_primal() -> None:
    async def slope(x: Any) -> Any:
        return x * (await jitbatch.value(x))

    assert jax.grad(lambda x: jitbatch.run(slope(x)))(3.0) == 3.0


def test_run_inside_of_jit_answers_for_python_numbers() -> None:
    async def slope(x: Any, count: Any) -> Any:
        return x * (await jitbatch.value(count))

    assert jax.jit(lambda x: jitbatch.run(slope(x, 3)))(2.0) == 6.0


def test_run_inside_of_a_sample() -> None:
    @decorated
    def inner(one: Any, x: Any) -> Any:
        return one if jitbatch.run(ask(x)) > 0 else x

    @decorated
    async def sample(one: Any, x: Any) -> Any:
        return inner(one, x)

    message = r"jitbatch.run was called at .*questions.py:\d+ while sample 0 of .* and inside of a decorated function"
    with pytest.raises(QuestionError, match=message):
        sample.batch(1.0, [2.0])


def test_a_value_of_an_inner_transformation() -> None:
    @decorated
    async def sample(one: Any, x: Any) -> Any:
        seen = []
        jax.vmap(lambda row: (seen.append(row), row)[1])(jnp.stack([x, one]))
        return await jitbatch.value(seen[0])

    with pytest.raises(QuestionError, match=r"asked at .*questions.py:\d+ for a value of jax.vmap, in sample 0 of"):
        sample.batch(1.0, [2.0, 3.0])


def test_inner_asynchronous_functions_are_awaited() -> None:
    @decorated
    async def halve(one: Any, x: Any) -> Any:
        while await jitbatch.value(x > one):
            x = x / 2
        return x

    @decorated
    async def both(one: Any, x: Any) -> Any:
        return await halve(one, x) + await halve(one, x * 3)

    wanted = [jitbatch.run(both(1.0, x)) for x in (3.0, 10.0)]
    np.testing.assert_allclose(both.batch(1.0, [3.0, 10.0]), wanted)


def test_other_awaitables_are_refused() -> None:
    @decorated
    async def sleeps(one: Any, x: Any) -> Any:
        await asyncio.sleep(0)
        return x

    message = r"awaits something that is not `jitbatch.value\(...\)`. Inside a sample only values can be awaited"
    with pytest.raises(QuestionError, match="sample 0 of .*sleeps.* " + message) as raised:
        sleeps.batch(1.0, [2.0])
    assert any("test_questions.py" in str(entry.path) for entry in raised.traceback)
    with pytest.raises(QuestionError, match="the sample " + message):
        jitbatch.run(sleeps(1.0, 2.0))


def test_what_is_no_array_and_what_is_not_awaited() -> None:
    with pytest.raises(QuestionError, match=r"asked at .*questions.py:\d+ for 'text' of type str, in the sample: it"):
        jitbatch.run(ask(["text"]))
    with pytest.raises(QuestionError, match=r"is not awaited, at .*test_questions.py:\d+: write `await"):
        bool(jitbatch.value(1.0))
    with pytest.raises(QuestionError, match="takes the coroutine that an asynchronous function returns, got int"):
        jitbatch.run(3)  # type: ignore[arg-type]


def test_an_error_can_be_caught_where_the_sample_waits() -> None:
    async def careful() -> Any:
        try:
            return await jitbatch.value("text")
        except QuestionError:
            return await jitbatch.value(1)

    assert jitbatch.run(careful()) == 1
