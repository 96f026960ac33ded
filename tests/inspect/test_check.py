"""`f.check` compares a batch with the plain loop, and says where it differs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jitbatch import JitbatchError, jitbatch
from jitbatch.inspect.check import Check
from jitbatch.plan import run as run_module


@jitbatch
def cell(params: Any, x: Any) -> Any:
    return jnp.tanh(params["w"] @ x)


@jitbatch
def chain(params: Any, xs: Any) -> Any:
    h = xs[0]
    for x in xs:
        h = cell(params, h + x)
    return {"h": h, "length": len(xs)}


PARAMS = {"w": jnp.eye(3) / 2, "steps": 3}
SAMPLES = [np.ones((n, 3), np.float32) * n for n in (1, 3, 2)]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every plan run with parameters, or outputs, that are changed."""

    def by(change: Any, outputs: Any = lambda results: results) -> None:
        real = run_module.execute
        monkeypatch.setattr(
            "jitbatch.methods.batched.execute", lambda plan, leaves: outputs(real(plan, change(leaves)))
        )

    return by


def test_what_agrees_prints_the_worst_differences() -> None:
    result = chain.check(PARAMS, SAMPLES)
    assert isinstance(result, Check)
    assert result.samples == 3
    assert result.values.relative < 1e-6
    assert result.gradients.relative < 1e-6
    assert "chain on 3 samples agrees with the plain loop" in str(result)


def test_a_wrong_value_is_named_by_sample_and_path(broken: Any) -> None:
    broken(lambda leaves: leaves, lambda out: {**out, "h": out["h"].at[1, 2].add(0.125)})
    with pytest.raises(AssertionError, match=r"its values differ .* at sample 1, result\['h'\]\[2\]") as caught:
        chain.check(PARAMS, SAMPLES)
    assert isinstance(caught.value, JitbatchError)


def test_a_wrong_integer_is_never_allowed(broken: Any) -> None:
    broken(lambda leaves: leaves, lambda out: {**out, "length": out["length"] + 1})
    with pytest.raises(AssertionError, match=r"at sample 0, result\['length'\]"):
        chain.check(PARAMS, SAMPLES, tolerance=10.0)


def test_a_wrong_gradient_is_named_by_its_parameter(broken: Any) -> None:
    @jax.custom_jvp
    def same(x: Any) -> Any:
        return x

    same.defjvp(lambda primals, tangents: (primals[0], 1.5 * tangents[0]))
    broken(lambda leaves: [same(x) if jnp.ndim(x) == 2 else x for x in leaves])
    with pytest.raises(AssertionError, match=r"its gradients differ .* at params\['w'\]\[\d, \d\]"):
        chain.check(PARAMS, SAMPLES)


def test_a_tolerance_can_be_given(broken: Any) -> None:
    broken(lambda leaves: leaves, lambda out: {**out, "h": out["h"] * 1.01})
    with pytest.raises(AssertionError, match="give a tolerance"):
        chain.check(PARAMS, SAMPLES)
    with pytest.raises(AssertionError):
        chain.check(PARAMS, SAMPLES, tolerance=1e-3)
    assert chain.check(PARAMS, SAMPLES, tolerance=2e-2).values.relative == pytest.approx(0.01, rel=1e-2)


def test_nans_agree_with_nans_only(broken: Any) -> None:
    root = jitbatch(lambda w, x: jnp.sqrt(w * x))
    assert root.check(1.0, [-1.0, 4.0]).values.relative == 0
    broken(lambda leaves: leaves, lambda out: jnp.nan_to_num(out))
    with pytest.raises(AssertionError, match="values differ by at most inf"):
        root.check(1.0, [-1.0, 4.0])


@pytest.mark.parametrize("options", [{"executor": "dispatch"}, {"executor": "per_sample"}, {"out": "list"}], ids=str)
def test_any_executor_and_output(options: Any) -> None:
    assert jitbatch(chain.__wrapped__, **options).check(PARAMS, SAMPLES).values.is_allowed


def test_ragged_outputs() -> None:
    each = jitbatch(lambda params, xs: [params["w"] @ x for x in xs], out="ragged")
    assert each.check(PARAMS, SAMPLES).gradients.is_allowed


def test_modules_and_methods() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.linear = nnx.Linear(3, 3, rngs=rngs)

        @jitbatch
        def score(self, xs: Any) -> Any:
            return sum(self.linear(x) for x in xs)

    assert Net(nnx.Rngs(0)).score.check(SAMPLES).gradients.is_allowed


def test_a_function_without_floats() -> None:
    count = jitbatch(lambda offset, xs: offset + len(xs))
    assert str(count.check(2, [(1, 2), (3,)])).endswith("values equal; gradients equal")


def test_short_floats_have_a_tolerance_of_their_own() -> None:
    short = jitbatch(lambda w, xs: sum(jnp.tanh(w * x) for x in xs))
    samples = [tuple(jnp.bfloat16(i / n) for i in range(n)) for n in (30, 20)]
    result = short.check(jnp.bfloat16(0.3), samples)
    assert result.values.allowed == 5e-2


@jitbatch
def short(params: Any, x: Any) -> Any:
    h = x.astype(jnp.bfloat16)
    for _ in range(3):
        h = jnp.tanh(params["w"].astype(jnp.bfloat16) @ h)
    return h.astype(jnp.float32)


def noisy_params() -> Any:
    return {"w": jax.random.normal(jax.random.key(0), (16, 16))}


def vectors(many: int) -> list[Any]:
    return list(np.asarray(jax.random.normal(jax.random.key(1), (many, 16))))


@jitbatch
def short_sums(params: Any, xs: Any) -> Any:
    return jnp.sum(sum(short(params, x) for x in xs))


def test_the_tolerance_follows_the_floats_that_are_computed_in(broken: Any) -> None:
    samples = [tuple(vectors(n)) for n in (3, 5)]
    result = short_sums.check(noisy_params(), samples)
    assert result.computed_in == "bfloat16"
    assert str(result).endswith("(computed in bfloat16, so that 5e-02 is allowed)")
    assert result.values.allowed == result.gradients.allowed == 5e-2
    broken(lambda leaves: leaves, lambda out: 1.02 * out)  # as far off as rounding to bfloat16 can be
    assert 0.01 < short_sums.check(noisy_params(), samples).values.relative < 0.03
    with pytest.raises(AssertionError, match=r"1.0e-04 is allowed\. If they agree"):
        short_sums.check(noisy_params(), samples, tolerance=1e-4)
    broken(lambda leaves: leaves, lambda out: 1.5 * out)
    with pytest.raises(AssertionError, match=r"5.0e-02 is allowed \(computed in bfloat16, .*\)\. If they agree"):
        short_sums.check(noisy_params(), samples)


def test_short_floats_inside_of_other_operations_are_found() -> None:
    @jitbatch
    def scanned(w: Any, x: Any) -> Any:
        def turn(h: Any, _: None) -> Any:
            return jnp.tanh(w.astype(jnp.bfloat16) * h.astype(jnp.bfloat16)).astype(jnp.float32), None

        return jax.lax.scan(turn, x, None, 3)[0]

    assert scanned.check(jnp.float32(0.5), [1.0, 2.0]).computed_in == "bfloat16"
    assert chain.check(PARAMS, SAMPLES).computed_in == ""
    plain = jitbatch(lambda w, x: (w * x).astype(jnp.bfloat16))
    assert plain.check(jnp.bfloat16(0.5), [jnp.bfloat16(1.0)]).computed_in == ""
    one_by_one = jitbatch(short_sums.__wrapped__, executor="per_sample")
    assert one_by_one.check(noisy_params(), [tuple(vectors(2))]).computed_in == "bfloat16"


def test_a_function_that_asks_for_the_type_of_a_number_is_told_so() -> None:
    """Numbers are arrays while a sample is recorded; nothing else says that this makes a difference."""
    cell = jitbatch(lambda w, x, k: w * x * (2.0 if isinstance(k, int) else 5.0))
    for function, sample in (
        (jitbatch(lambda w, x: cell(w, x, 1)), 3.0),
        (jitbatch(lambda w, pair: w * pair[1] * (2.0 if isinstance(pair[0], int) else 5.0)), (1, 2.0)),
    ):
        with pytest.raises(AssertionError, match="differs from the plain loop: its values differ by"):
            function.check(1.0, [sample])


def test_the_type_of_a_number_in_shared_arguments_is_told_as_well() -> None:
    scaled = jitbatch(lambda p, x: p["w"] * x * (2.0 if isinstance(p["k"], float) else 5.0))
    with pytest.raises(AssertionError, match="differs from the plain loop"):
        scaled.check({"w": jnp.float32(2), "k": 1.0}, [3.0])


def test_an_error_of_the_plain_loop_names_the_sample_and_says_that_numbers_are_arrays_in_a_batch() -> None:
    needs_array = jitbatch(lambda w, x: w * x.astype(jnp.float32))
    with pytest.raises(AttributeError) as raised:
        needs_array.check(2.0, [jnp.int32(1), 2])
    assert any("by the plain loop, in a call with sample 1" in note for note in raised.value.__notes__)
