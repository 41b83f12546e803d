"""A supervisor for each process of a job whose processes come and go: it starts the training, and outlives it."""

from ddl.hosts.supervision.memory import Memory
from ddl.hosts.supervision.messages import Order
from ddl.hosts.supervision.site import SupervisedJob
from ddl.hosts.supervision.supervisor import Supervisor
from ddl.hosts.supervision.training_process import LOST

__all__ = ["LOST", "Memory", "Order", "SupervisedJob", "Supervisor"]
