"""Jobs from reservation to end: admission, queue, dispatch to replicas, deadlines, cancellation, drain.

`job` is one job and its reader, `replicas` is what is known of the engine threads, `core` moves jobs through `policy`.
"""

from .core import Scheduler, SchedulerLimits
from .job import Ticket, Update
from .replicas import Readiness

__all__ = ["Readiness", "Scheduler", "SchedulerLimits", "Ticket", "Update"]
