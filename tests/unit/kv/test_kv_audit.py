"""Each corruption that is planted here must be seen by the audit: a check that cannot fail checks nothing."""

import numpy as np
import pytest
from kv_rig import Rig

from ramet.kv.pool import Owner


@pytest.fixture
def rig():
    rig = Rig(16, 4)
    rig.serve(list(range(50, 58)))
    rig.compute(rig.admit(list(range(10))))
    rig.compute(rig.admit([*range(8), 77, 78, 79]))
    return rig


def test_a_sound_state_passes(rig):
    rig.audit()


def plant_leak(rig):
    rig.live[0].pages.replace(2, rig.live[1].pages.view(2, 3))  # one page in two tables, another one in none


def plant_lost_sequence(rig):
    rig.live.pop()


def plant_lost_lock(rig):
    rig.manager.cache.lock(rig.manager.cache.match(rig.manager._key(rig.live[0], 8)))


def plant_free_page_in_use(rig):
    rig.manager.pool.transfer(rig.live[0].pages.view(2), Owner.PRIVATE, Owner.FREE)


def plant_cached_page_freed(rig):
    rig.manager.pool.transfer(rig.live[0].pages.view(0, 1), Owner.CACHED, Owner.FREE)


def plant_shared_page_in_private_part(rig):
    rig.live[0].pages.extend(rig.live[0].pages.view(0, 1).copy())


def plant_too_many_tokens(rig):
    rig.live[0].num_computed_tokens = 11  # I1: of 10


def plant_too_few_pages(rig):
    rig.live[0].num_in_flight_tokens = 3  # I2: 10 + 3 tokens on 3 pages


def plant_finished_with_pages(rig):
    rig.live[0].finish_reason = "abort"  # I4


def plant_pages_without_lock(rig):
    rig.live[0].lock = None


def plant_wrong_count(rig):
    rig.manager.cache._num_evictable += 1


def plant_wild_copy(rig):
    rig.manager._copies.append((3, 99, 2))


def plant_whole_page_copy(rig):
    rig.manager._copies.append((3, 4, 4))


def plant_moving_page(rig):
    rig.manager.pool.transfer(rig.live[0].pages.view(2), Owner.PRIVATE, Owner.MOVING)


def plant_other_page_in_shared_part(rig):
    rig.live[0].pages.replace(0, np.array([rig.live[0].pages[1]], np.int32))
    rig.live[1].pages.replace(0, np.array([rig.live[0].pages[1]], np.int32))


PLANTED = [value for name, value in sorted(globals().items()) if name.startswith("plant_")]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_seen(rig, plant):
    plant(rig)
    with pytest.raises(AssertionError):
        rig.audit()
