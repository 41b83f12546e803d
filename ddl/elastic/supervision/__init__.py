"""A supervisor for each process of a job whose processes come and go: it starts the training, and outlives it."""

from ddl.elastic.supervision.memory import Memory
from ddl.elastic.supervision.messages import Order
from ddl.elastic.supervision.site import SupervisedJob
from ddl.elastic.supervision.supervisor import Supervisor
from ddl.elastic.supervision.training_process import LOST

__all__ = ["LOST", "Memory", "Order", "SupervisedJob", "Supervisor"]
