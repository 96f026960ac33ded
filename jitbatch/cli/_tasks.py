"""All tasks, by name."""

from collections.abc import Callable

from jitbatch.cli._settings import Settings
from jitbatch.cli._task import Task
from jitbatch.cli._tasks_functions import ast
from jitbatch.cli._tasks_molecules import molecules
from jitbatch.cli._tasks_sentences import parser, tagger
from jitbatch.cli._tasks_trees import listops, sick, sst

TASKS: dict[str, Callable[[Settings], Task]] = {
    "listops": listops,
    "sick": sick,
    "sst": sst,
    "tagger": tagger,
    "parser": parser,
    "ast": ast,
    "molecules": molecules,
}


def make_task(settings: Settings) -> Task:
    return TASKS[settings.task](settings)
