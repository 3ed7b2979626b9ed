"""Batches on the mesh: the same global batch for any layout, and each process makes only the rows that it needs."""

import jax
import numpy as np
import pytest

from bert_jax.data.pretraining.batches import RandomBatches
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.sharding import batch_shardings, to_host

pytestmark = pytest.mark.eight_devices

SOURCE = RandomBatches(batch_size=16, max_seq_length=8, max_predictions=2, vocab_size=50)


class Recorder:
    def __init__(self):
        self.rows = []

    def batch(self, step, rows=None):
        self.rows.append(rows)
        return SOURCE.batch(step, rows)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2), (1, 4, 2), (1, 1, 8)])
def test_a_batch_on_the_mesh_is_the_hosts_batch(sizes):
    mesh = make_mesh(MeshConfig(*sizes))
    batch = MeshBatches(SOURCE, 16, batch_shardings(mesh)).batch(3)
    for name, array in SOURCE.batch(3).items():
        np.testing.assert_array_equal(to_host(batch[name]), array)
        assert batch[name].sharding == batch_shardings(mesh)
        assert batch[name].addressable_shards[0].data.shape[0] == 16 // (sizes[0] * sizes[1])


class SecondOfTwoProcesses:
    """The layout, as seen by a process that holds half of the devices."""

    def __init__(self, mesh):
        self.indices = batch_shardings(mesh).devices_indices_map((16,))

    def addressable_devices_indices_map(self, shape):
        devices = sorted(self.indices, key=lambda device: device.id)[4:]
        return {device: self.indices[device] for device in devices}


def test_a_process_makes_the_rows_of_its_own_devices_only(monkeypatch):
    mesh = make_mesh(MeshConfig(8))
    recorder = Recorder()
    batches = MeshBatches(recorder, 16, SecondOfTwoProcesses(mesh))  # type: ignore[arg-type]
    asked = {}

    def take(shape, sharding, callback):
        asked["rows"] = np.concatenate(
            [callback((index[0],)) for index in sharding.addressable_devices_indices_map(shape).values()]
        )
        return asked["rows"]

    monkeypatch.setattr(jax, "make_array_from_callback", take)
    batch = batches.batch(5)
    assert recorder.rows[0].tolist() == list(range(8, 16))
    np.testing.assert_array_equal(batch["next_sentence_label"], SOURCE.batch(5)["next_sentence_label"][8:])


def test_random_batches_are_a_function_of_seed_step_and_row():
    whole = SOURCE.batch(7)
    for name, array in SOURCE.batch(7, np.array([3, 9])).items():
        np.testing.assert_array_equal(array, whole[name][[3, 9]])
    assert not np.array_equal(whole["input_ids"], SOURCE.batch(8)["input_ids"])
    positions = whole["mlm_positions"]
    assert (np.diff(positions, axis=1) > 0).all()
