"""Tests mirror the folders: each module has a test file of its name, or is named here with the tests that hold it."""

from pathlib import Path

import pytest

import jitbatch as package

ROOT = Path(package.__file__).parent
TESTS = Path(__file__).parent

ELSEWHERE = {
    "batch/components": "schedule/test_rounds.py",
    "batch/problem": "schedule/test_policies.py",
    "core/layout": "core/test_border.py",
    "core/reference/assembler": "core/test_assembler.py",
    "core/reference/batch": "core/test_equal_plans.py",
    "core/reference/fill": "core/test_equal_plans.py",
    "core/reference/input_rows": "core/test_equal_plans.py",
    "core/reference/numbering": "core/test_equal_plans.py",
    "core/reference/ranks": "core/test_equal_plans.py",
    "core/reference/schedule": "core/test_equal_plans.py",
    "core/reference/type_table": "core/test_equal_plans.py",
    "core/reference/typed_graph": "core/test_equal_plans.py",
    "errors": "docs/test_docs.py",
    "execute/arenas": "plan/test_run.py",
    "execute/batch_samples": "plan/test_refill.py",
    "execute/executor": "execute/test_registry.py",
    "execute/fused/backward": "execute/fused/test_loop.py",
    "execute/fused/executor": "execute/fused/test_program.py",
    "execute/fused/layout": "core/test_equal_plans.py",
    "execute/fused/loop_steps": "inspect/test_executed.py",
    "execute/fused/memory": "execute/test_memory.py",
    "execute/fused/shapes": "execute/fused/test_loop.py",
    "execute/fused/sizing": "execute/fused/test_program.py",
    "execute/fused/tables": "core/test_equal_plans.py",
    "execute/fused/weight_gradients": "execute/test_weight_uses.py",
    "execute/predicted_memory": "execute/test_memory.py",
    "execute/program": "execute/test_registry.py",
    "execute/steps": "inspect/test_executed.py",
    "rollout/arenas": "rollout/test_flight.py",
    "rollout/live": "record/test_questions.py",
    "rollout/engine": "rollout/test_flight.py",
    "rollout/held": "rollout/test_flight.py",
    "rollout/program": "rollout/test_lowered.py",
    "rollout/rollout": "rollout/test_flight.py",
    "rollout/segments": "rollout/test_walks.py",
    "rollout/tickets": "rollout/test_flight.py",
    "inspect/report": "inspect/test_explain.py",
    "methods/asynchronous": "rollout/test_flight.py",
    "plan/make": "plan/test_plan.py",
    "plan/minibatches": "plan/test_capacity.py",
    "plan/options": "plan/test_plan.py",
    "plan/outputs": "plan/test_plan.py",
    "plan/per_sample": "execute/test_per_sample.py",
    "plan/plannable": "plan/test_refill.py",
    "plan/saved/checks": "plan/saved/test_saved_file.py",
    "plan/saved/content": "plan/saved/test_saved_file.py",
    "plan/saved/dispatch": "plan/saved/test_saved_file.py",
    "plan/saved/format": "plan/saved/test_saved_file.py",
    "plan/saved/fused": "plan/saved/test_saved_file.py",
    "plan/saved/schema": "plan/saved/test_saved_file.py",
    "plan/saved/trees": "plan/saved/test_saved_file.py",
    "plan/saved/values": "plan/saved/test_saved_file.py",
    "plan/serving": "serve/test_programs.py",
    "plan/static": "plan/test_plan.py",
    "plan/strategy": "tune/test_auto.py",
    "record/binding": "record/test_templates.py",
    "record/calls": "record/test_recorder.py",
    "record/group_cells": "record/test_grouping.py",
    "record/known_numbers": "laws/test_computed_numbers.py",
    "record/mutation": "util/test_errors.py",
    "record/noted_call": "laws/test_wrong_uses.py",
    "record/notes": "inspect/test_explain.py",
    "record/operations": "record/test_recorder.py",
    "record/recording_errors": "util/test_errors.py",
    "record/replay": "record/test_templates.py",
    "step/agreement": "step/test_step_processes.py",
    "step/processes": "step/test_step_processes.py",
    "serve/arguments": "serve/test_server.py",
    "serve/limits": "serve/test_worker.py",
    "serve/requests": "serve/test_worker.py",
    "serve/stats": "serve/test_server.py",
    "serve/whole": "serve/test_server.py",
    "step/buffers": "step/test_on_mesh.py",
    "step/capacity": "step/test_step_capacity.py",
    "step/rows": "step/test_jit.py",
    "step/samples": "step/test_jit.py",
    "step/split": "step/test_on_mesh.py",
    "util/threads": "plan/test_prefetch.py",
}
"""Modules that are tested through another one: what they do shows only there, or the name would not be unique."""

WHOLE = ("cli", "data", "models")
"""Stages that are tested through the command, or by kinds of data and of models."""

MODULES = [
    path.relative_to(ROOT).with_suffix("").as_posix()
    for path in sorted(ROOT.rglob("*.py"))
    if not path.stem.startswith("_") and path.relative_to(ROOT).parts[0] not in WHOLE
]


def file_of(module: str) -> str:
    folder, _, name = module.rpartition("/")
    prefix = "test_saved_" if folder.endswith("saved") else "test_"
    return "/".join(filter(None, (folder, f"{prefix}{name}.py")))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_test_file(module: str) -> None:
    file = ELSEWHERE.get(module, file_of(module))
    assert (TESTS / file).exists(), f"write tests/{file}, or name the file that tests jitbatch/{module}.py in ELSEWHERE"


@pytest.mark.parametrize("module", ELSEWHERE)
def test_an_exception_is_still_needed(module: str) -> None:
    assert module in MODULES, f"jitbatch/{module}.py is gone: remove it from ELSEWHERE"
    assert not (TESTS / file_of(module)).exists(), f"tests/{file_of(module)} is there: remove the entry of ELSEWHERE"


def test_base_names_of_test_files_are_unique() -> None:
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
