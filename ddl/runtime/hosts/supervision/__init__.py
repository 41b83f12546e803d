"""A supervisor for each process of a job whose processes come and go: it starts the training, and outlives it."""

from ddl.runtime.hosts.supervision.memory import Memory
from ddl.runtime.hosts.supervision.messages import Order
from ddl.runtime.hosts.supervision.site import Job
from ddl.runtime.hosts.supervision.supervisor import Supervisor
from ddl.runtime.hosts.supervision.training_process import LOST

__all__ = ["LOST", "Job", "Memory", "Order", "Supervisor"]
