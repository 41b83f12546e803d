"""Devices by their data sheets, published steps on them, and the shares of the sheets' rates that a step reaches."""
