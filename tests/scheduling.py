"""A test process that dies costs the run one test: xdist's own scheduler then waits forever, near the end."""

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` has no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return Files(config, log) if config.getoption("dist") == "loadfile" else None  # type: ignore[arg-type]


class Files(LoadFileScheduling):
    """Hands out files of tests as `--dist loadfile` does, also after a process has died.

    xdist 3.8 gives a new process the finished files of the dead one, or a single last test. A process starts a test
    when it knows the next one, so with these it waits, and so does the run.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        left = {file: tests for file, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        running = next((test for tests in left.values() for test, done in tests.items() if not done), None)
        for file, tests in left.items():
            if running in tests:
                tests[running] = True  # a test that ends its process would end the next one too
            if not all(tests.values()):
                self.workqueue[file] = tests
        for other in self.assigned_work:
            self._reschedule(other)
        return running

    def _reschedule(self, node: WorkerController) -> None:
        while self._wants_more(node):
            super()._reschedule(node)  # a file, or word that there is no more

    def _wants_more(self, node: WorkerController) -> bool:
        known = node in self.registered_collections  # not yet if it is still importing
        return known and not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2
