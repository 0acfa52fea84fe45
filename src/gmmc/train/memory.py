"""Where the images of a training lie: on its device while they fit, else in host memory, streamed.

A table is rows of one dtype and shape. Both kinds give the same bits; only the waiting differs.
"""

import math

import torch
from torch import Tensor

from gmmc.errors import InputError

GIGABYTE = 1e9
ROWS_AT_ONCE = (
    4096  # what is computed for a whole table is computed in parts: it may be larger than the device
)


class OnDevice:
    """Rows on the training device: with an index that lies there, nothing waits.

    The tensor is taken over, not copied, where it lies there already; of a meta tensor only dtype and shape
    are, and the rows are whatever was in memory.
    """

    def __init__(self, rows: Tensor, device: torch.device | str):
        self.tensor = _laid_out(rows, torch.device(device))
        self.index_device = self.tensor.device

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, index: Tensor) -> Tensor:
        return self.tensor.index_select(0, index.to(self.index_device))

    def put(self, index: Tensor, rows: Tensor) -> None:
        """Rows for distinct places."""
        _check(self.tensor, index, rows)
        self.tensor.index_copy_(0, index.to(self.index_device), rows.to(self.index_device))


class OnHost:
    """Rows in host memory; those asked for come to the training device, and go back.

    Takes the tensor over as OnDevice does. An index that lies on the device makes `take` wait for all that
    was launched before.
    """

    index_device = torch.device("cpu")

    def __init__(self, rows: Tensor, device: torch.device | str):
        self.device = torch.device(device)
        self._rows = _laid_out(rows, self.index_device)
        self._arriving: tuple[Tensor, Tensor, torch.cuda.Event] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def tensor(self) -> Tensor:
        self._settle()
        return self._rows

    def take(self, index: Tensor) -> Tensor:
        self._settle()
        index = index.cpu()
        if self.device.type != "cuda":
            return self._rows.index_select(0, index).to(self.device)
        # Only from page-locked memory does a copy run while the host goes on. The block is let go at once, in
        # mid-copy: torch's allocator of such memory gives it to nobody before the copy is done, and then
        # gives it to the next batch, so that no memory is locked anew.
        staged = _page_locked(self._rows, len(index))
        torch.index_select(self._rows, 0, index, out=staged)
        return staged.to(self.device, non_blocking=True)

    def put(self, index: Tensor, rows: Tensor) -> None:
        """Rows for distinct places; from a GPU they are under way until the table is next looked at."""
        _check(self._rows, index, rows)
        self._settle()
        if rows.is_cuda:
            arrived = torch.cuda.Event()
            self._arriving = _fetched(index), _fetched(rows), arrived
            arrived.record(torch.cuda.current_stream(rows.device))
        else:
            self._rows.index_copy_(0, index.cpu(), rows.cpu())

    def _settle(self) -> None:
        """Write the rows of the last `put` into the table, once they are here."""
        if self._arriving is None:
            return
        (index, rows, arrived), self._arriving = self._arriving, None
        arrived.synchronize()
        self._rows.index_copy_(0, index, rows)


Table = OnDevice | OnHost


class Room:
    """How much of a device's memory tables may fill: they lie there in the order they come, while they fit.

    `gigabytes` is for all tables together; 0 is half of what is free on a GPU now, and no limit elsewhere.
    `notes` has a line on each table that did not fit. On a CPU a limit saves nothing, but streams likewise.
    """

    def __init__(self, device: torch.device | str, gigabytes: float):
        self.device = torch.device(device)
        self.notes: list[str] = []
        if gigabytes > 0:
            self.left = gigabytes * GIGABYTE
            self._limit = f"train.memory={gigabytes:g} GB"
        elif self.device.type == "cuda":
            self.left = torch.cuda.mem_get_info(self.device)[0] / 2
            self._limit = f"half of the free GPU memory is {self.left / GIGABYTE:.3g} GB"
        else:
            self.left = math.inf

    def place(self, rows: Tensor, what: str = "images") -> Table:
        """A table of these rows, where there is room for it; of a meta tensor, one to be filled."""
        size = rows.numel() * rows.element_size()
        if size <= self.left:
            self.left -= size
            return OnDevice(rows, self.device)
        self.notes.append(
            f"{len(rows):,} {what} ({size / GIGABYTE:.3g} GB) are streamed from host memory: {self._limit}"
        )
        return OnHost(rows, self.device)


def _laid_out(rows: Tensor, device: torch.device) -> Tensor:
    return torch.empty_like(rows, device=device) if rows.is_meta else rows.to(device)


def _check(table: Tensor, index: Tensor, rows: Tensor) -> None:
    wanted, found = (len(index), *table.shape[1:]), tuple(rows.shape)
    if (found, rows.dtype) != (wanted, table.dtype):
        raise InputError(f"rows must be {table.dtype} of shape {wanted}, got {rows.dtype} of shape {found}")


def _page_locked(like: Tensor, count: int) -> Tensor:
    return torch.empty(count, *like.shape[1:], dtype=like.dtype, pin_memory=True)


def _fetched(tensor: Tensor) -> Tensor:
    """A copy in host memory that is complete when the stream has come so far; nobody waits here.

    In the stream of the work, not in one beside it: what is launched later may overwrite the original.
    """
    return _page_locked(tensor, len(tensor)).copy_(tensor.contiguous(), non_blocking=tensor.is_cuda)
