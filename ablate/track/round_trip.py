"""Prove that a tracker works: write a run, read it back, delete it."""

from __future__ import annotations

import time

from ablate.track.address import public_uri, tracking_uri
from ablate.track.tracker import TrackerError, connect, experiment, tracker_errors

NAME = "ablate-doctor"


def round_trip() -> tuple[str, float]:
    """Return the tracker's address and how many seconds the round trip took.

    Raises:
        UserError: MLflow cannot use such an address.
        TrackerError: the tracker failed, or gave back another value than it was given.
    """
    uri = tracking_uri()
    client = connect(uri)
    began = time.monotonic()
    with tracker_errors(uri):
        place = experiment(client, NAME)
        run_id = client.create_run(place).info.run_id
        client.log_metric(run_id, "value", 0.5)
        client.set_terminated(run_id)
        value = client.get_run(run_id).data.metrics.get("value")
        client.delete_run(run_id)
        client.delete_experiment(place)
    if value != 0.5:
        raise TrackerError(f"the tracker {public_uri(uri)} gave {value} back for 0.5")
    return public_uri(uri), time.monotonic() - began
