"""A thread for files and the terminal."""

import logging
import queue
import threading
from collections.abc import Callable

from hpcrl.errors import StorageError

log = logging.getLogger(__name__)


class Writer:
    """A thread that does all file and terminal work of the monitor, in order. A slow disk never delays a server."""

    def __init__(self):
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Run ``task`` after all earlier ones."""
        self._tasks.put(task)

    def idle(self) -> bool:
        """Whether everything submitted is done."""
        return self._tasks.unfinished_tasks == 0

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                self.perform(task)
            except StorageError as error:  # training goes on; anything else ends the job (threading.excepthook)
                log.warning("%s", error)
            finally:
                self._tasks.task_done()

    def perform(self, task: Callable[[], None]) -> None:
        """Do what was submitted, in the thread."""
        task()
