"""From seconds to choices: batch, workers, servers, delay and period."""
