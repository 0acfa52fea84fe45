import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmc.errors import InputError
from gmmc.train.memory import GIGABYTE, OnDevice, OnHost, Room

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
KINDS = [OnDevice, OnHost]
ROWS = 7

indices = st.lists(st.integers(0, ROWS - 1), max_size=ROWS)
operations = st.lists(
    st.tuples(
        st.sampled_from(["take", "put", "look"]),
        indices,
        st.booleans(),  # the index lies on the device
    ),
    max_size=12,
)


def random_rows(count, seed=0, dtype=torch.float16):
    values = torch.randint(256, (count, 1, 3, 2), generator=torch.Generator().manual_seed(seed))
    return values.to(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(operations=operations)
def test_a_table_is_a_tensor_wherever_it_lies(device, dtype, kind, operations):
    plain = random_rows(ROWS, dtype=dtype)
    table = kind(plain.clone(), device)
    for step, (name, places, there) in enumerate(operations):
        index = torch.tensor(places, dtype=torch.long)
        if name == "put":
            index = index.unique()
            rows = random_rows(len(index), seed=step + 1, dtype=dtype)
            plain[index] = rows
            table.put(index.to(device) if there else index, rows.to(device))
        elif name == "take":
            taken = table.take(index.to(device) if there else index)
            assert taken.device.type == device
            assert taken.dtype == dtype
            assert torch.equal(taken.cpu(), plain[index])
        else:
            assert torch.equal(table.tensor.cpu(), plain)
    assert torch.equal(table.tensor.cpu(), plain)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_afterwards_does_not_reach_back(device, kind):
    """Neither to rows taken before, nor to rows and index put before."""
    plain = random_rows(ROWS)
    table = kind(plain.clone(), device)
    index = torch.tensor([4, 1])
    taken = table.take(index)
    rows = random_rows(2, seed=1).to(device)
    table.put(index, rows)
    rows.zero_()
    index.zero_()
    assert torch.equal(taken.cpu(), plain[[4, 1]])
    plain[[4, 1]] = random_rows(2, seed=1)
    assert torch.equal(table.tensor.cpu(), plain)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_have_any_strides_and_come_from_anywhere(device, kind):
    table = kind(torch.zeros(ROWS, 2, 3, 4), device)
    rows = torch.arange(48.0).reshape(2, 2, 3, 4)
    index = torch.tensor([5, 2])
    for given_rows in (rows, rows.to(device).contiguous(memory_format=torch.channels_last)):
        for given_index in (index, index.to(device)):
            table.tensor.zero_()
            table.put(given_index, given_rows)
            assert torch.equal(table.take(index).cpu(), rows)
            assert table.tensor.cpu().flatten(1).any(1).nonzero().flatten().tolist() == [2, 5]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_work_on_the_whole_table_comes_after_what_was_put(device, kind):
    table = kind(random_rows(ROWS), device)
    table.put(torch.tensor([3], device=device), random_rows(1, seed=1).to(device))
    table.tensor.fill_(7)
    assert (table.take(torch.arange(ROWS)) == 7).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_meta_tensor_reserves_a_table(device, kind):
    table = kind(torch.empty(ROWS, 1, 3, 2, dtype=torch.float16, device="meta"), device)
    assert len(table) == ROWS
    table.put(torch.arange(ROWS), random_rows(ROWS).to(device))
    assert torch.equal(table.tensor.cpu(), random_rows(ROWS))


@pytest.mark.parametrize("device", DEVICES)
def test_where_tables_and_their_indices_lie(device):
    near, far = OnDevice(random_rows(ROWS), device), OnHost(random_rows(ROWS).to(device), device)
    assert near.tensor.device.type == near.index_device.type == device
    assert far.tensor.device.type == far.index_device.type == "cpu"


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_taken_over_and_not_copied(kind):
    rows = random_rows(ROWS)
    assert kind(rows, "cpu").tensor.data_ptr() == rows.data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_do_not_fit_are_refused(kind):
    table = kind(random_rows(ROWS), "cpu")
    index = torch.arange(2)
    with pytest.raises(
        InputError, match=r"rows must be torch.float16 of shape \(2, 1, 3, 2\), got .*\(1, 1, 3"
    ):
        table.put(index, random_rows(1))
    with pytest.raises(
        InputError, match=r"must be torch.float16 .*, got torch.uint8 of shape \(2, 1, 3, 2\)"
    ):
        table.put(index, random_rows(2, dtype=torch.uint8))
    for wrong in (-1, ROWS):
        with pytest.raises(IndexError):
            table.take(torch.tensor([wrong]))
        with pytest.raises(IndexError):
            table.put(torch.tensor([wrong]), random_rows(1))
    assert torch.equal(table.tensor, random_rows(ROWS))


# --- who fits ---


@pytest.mark.parametrize("device", DEVICES)
def test_tables_lie_on_the_device_while_they_fit(device):
    images = torch.zeros(1000, 1, 10, 10, dtype=torch.uint8)  # 100,000 bytes
    room = Room(device, 250_000 / GIGABYTE)
    assert isinstance(room.place(images), OnDevice)
    chains = torch.zeros(1000, 1, 10, 10, dtype=torch.float16, device="meta")  # 200,000 bytes
    assert isinstance(room.place(chains, "chains"), OnHost)
    assert room.notes == ["1,000 chains (0.0002 GB) are streamed from host memory: train.memory=0.00025 GB"]
    assert isinstance(room.place(images), OnDevice)  # what did not fit took nothing
    assert isinstance(room.place(images), OnHost)
    assert len(room.notes) == 2


def test_a_table_that_fits_exactly_fits():
    assert isinstance(Room("cpu", 600 / GIGABYTE).place(torch.zeros(150)), OnDevice)
    assert isinstance(Room("cpu", 599 / GIGABYTE).place(torch.zeros(150)), OnHost)


def test_a_cpu_has_no_limit_unless_told():
    room = Room("cpu", 0)
    assert isinstance(room.place(torch.zeros(1).expand(10**15)), OnDevice)
    assert room.notes == []


def test_without_a_limit_tables_take_half_of_the_free_gpu_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2000, 10**9))
    room = Room("cuda", 0)
    assert room.left == 1000
    monkeypatch.setattr("gmmc.train.memory._laid_out", lambda rows, device: rows)
    assert isinstance(room.place(torch.zeros(250)), OnDevice)
    assert isinstance(room.place(torch.zeros(2)), OnHost)
    assert room.notes == [
        "2 images (8e-09 GB) are streamed from host memory: half of the free GPU memory is 1e-06 GB"
    ]


# --- the waiting ---


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", KINDS)
def test_with_an_index_where_it_should_lie_nothing_waits(kind):
    table = kind(random_rows(ROWS), "cuda")
    index, rows = torch.tensor([4, 1], device=table.index_device), random_rows(2, seed=1).cuda()
    table.take(index)
    torch.cuda.set_sync_debug_mode("error")
    try:
        taken = table.take(index)
        table.put(index, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(taken.cpu(), random_rows(ROWS)[[4, 1]])


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_device_may_be_far_behind(kind):
    """Rows are right though they were not yet there when they were put, and memory was not yet free."""
    plain = random_rows(ROWS)
    table = kind(plain.clone(), "cuda")
    ones = torch.ones(2, 1, 3, 2, dtype=torch.float16, device="cuda")
    for index in ([4, 1], [0, 3], [4, 3]):
        torch.cuda._sleep(10**8)  # tens of milliseconds
        several = [table.take(torch.tensor([row])) for row in range(ROWS)]
        table.put(torch.tensor(index), table.take(torch.tensor(index)) + ones)
        assert torch.equal(torch.cat(several).cpu(), plain)
        plain[index] += 1
        torch.cuda._sleep(10**8)
        table.put(torch.tensor([6]), ones[:1] * index[0])
        plain[6] = index[0]
        assert torch.equal(table.take(torch.arange(ROWS)).cpu(), plain)
