"""A trained model as one ONNX graph, for programs without torch: images → logits, posterior, densities."""

import copy
import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gmmc import __version__, core
from gmmc.base.atomic import write_atomic
from gmmc.base.extras import import_extra
from gmmc.base.inputs import read_bytes
from gmmc.base.limits import LONG_SHOWN, MODEL_BYTES
from gmmc.base.outputs import check_replaceable, check_writable
from gmmc.base.text import shortened
from gmmc.classifier import scores
from gmmc.classifier.abstention import REFIT
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import logits_at
from gmmc.errors import InputError

ENDING = ".onnx"
INPUT = "images"
OUTPUTS = ("logits", "posterior", "log_density")
SPAN = "span_density"  # one more output of a model with class means
SCORES = ("log_density", SPAN)  # outputs that the graph's threshold may be of
OPSET = 20
OLDEST_OPSET = 18  # before it, a logsumexp has another form
TOLERANCE = 1e-4
ONE_FILE = 2_000_000_000  # bytes; what is larger, protobuf cannot hold
MARK = "gmmc_version"  # in the metadata: by it, a graph of ours is known
NEEDED = ("onnx", "onnxscript")  # onnxruntime only checks
CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from torch."""

    path: Path
    size: int  # in bytes
    opset: int
    difference: float | None  # the largest, see `difference`; None where nothing could check it
    metadata: dict[str, str]
    remarks: tuple[str, ...]  # what a user of the graph has to know

    def __str__(self) -> str:
        size = f"{self.size / 1e6:.1f} MB" if self.size >= 1e5 else f"{self.size / 1e3:.0f} kB"
        if self.difference is None:
            checked = "not checked: onnxruntime is not installed"
        else:
            checked = f"onnxruntime differs from torch by at most {self.difference:.1e} of the largest logit"
        return f"{self.path}: {size}, opset {self.opset}; {checked}"


class Graph(nn.Module):
    """Images in [0, 1] → logits and p(y|x) at one γ², densities at that of training.

    The square is not expanded.
    """

    basis: Tensor

    def __init__(self, model: Classifier, gamma2: float):
        super().__init__()
        self.model, self.gamma2 = model, gamma2
        if model.head.means is not None:
            self.register_buffer("basis", core.span_basis(model.head.means.detach()).float())

    @property
    def outputs(self) -> tuple[str, ...]:
        return OUTPUTS if self.model.head.means is None else (*OUTPUTS, SPAN)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        head, features = self.model.head, self.model.features(images)
        energies = head.unit_energies(features)
        logits = head.logits_of(energies, self.gamma2)
        density = core.log_density(head.logits_of(energies, self.model.density_gamma2))
        found = logits, core.log_posterior(logits).exp(), density
        if head.means is None:
            return found
        inside, _ = core.split_energies(features, head.means, self.basis)
        return *found, core.log_density(head.logits_of(inside, self.model.density_gamma2))


def is_graph(place: Path) -> bool:
    """Whether a file is asked for, else a folder. Numbers after a dot are no ending: v1.2 is a folder."""
    ending = place.suffix.lower()
    if place.is_dir() or not ending[1:2].isalpha():
        return False
    if ending != ENDING:
        raise InputError(
            f"PLACE must be a file that ends in {ENDING} or a folder, got {shortened(str(place), LONG_SHOWN)}"
        )
    return True


def to_onnx(model: Classifier, path: str | Path, *, opset: int | None = None) -> Exported:
    """Write the model as an ONNX graph in float32, for any number of images.

    γ² of logits and posterior is the one `answer` uses: fitted on validation images, so that posteriors are
    calibrated; the stored one where the model keeps no scores of such images. Densities are at the γ² of
    training. Metadata name both γ², the score to abstain by and its threshold.
    A graph that onnxruntime does not compute as torch does is not written. A file that is there already is
    replaced only if it is such a graph.
    """
    if not isinstance(model, Classifier):
        raise InputError(
            f"model must be a gmmc.Classifier (of an estimator its model_), got {type(model).__name__}"
        )
    path, opset = Path(path), OPSET if opset is None else opset
    if path.is_dir() or path.suffix.lower() != ENDING:
        raise InputError(f"path must be a file that ends in {ENDING}, got {shortened(str(path), LONG_SHOWN)}")
    onnx = _packages()
    check_writable(path.parent, "path")
    check_replaceable(path, "path", lambda file: _is_ours(file, onnx))
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise InputError(f"opset must lie in {OLDEST_OPSET}..{newest}, got {opset}")
    # A plain copy: bf16, another device or the layout that convolutions like would all show in the graph.
    plain: Any = copy.deepcopy(model).to(device="cpu", dtype=torch.float32).eval()
    plain = plain.to(memory_format=torch.contiguous_format)
    if sum(part.nbytes for part in plain.state_dict().values()) > ONE_FILE:
        raise InputError(f"a graph in one file holds less than {ONE_FILE / 1e9:.0f} GB, this model has more")
    gamma2 = model.reference.gamma2 if model.reference else model.head.gamma2.item()
    graph = Graph(plain, gamma2)
    proto = _traced(graph, model.shape, opset)
    facts = metadata(model)
    onnx.helper.set_model_props(proto, facts)
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    found = difference(content, graph)
    write_atomic(path, content)
    return Exported(path, len(content), opset, found, facts, tuple(_remarks(model)))


def metadata(model: Classifier) -> dict[str, str]:
    """What is not in the weights: JSON where it is a list; without scores of images no threshold."""
    stored, reference, tpr = model.head.gamma2.item(), model.reference, model.abstain.tpr
    facts = {
        MARK: __version__,
        "class_names": json.dumps(model.class_names, ensure_ascii=False),
        "shape": json.dumps(model.shape),
        "priors": json.dumps(model.head.priors.tolist()),
        "gamma2": repr(reference.gamma2 if reference else stored),  # of the graph's logits and posterior
        "gamma2_stored": repr(stored),
        "gamma2_density": repr(model.density_gamma2),  # of the densities
    }
    if model.denoising is not None:
        facts["sigma"] = repr(model.denoising.class_sigma)  # noise level of all outputs
    if reference is None:
        return facts
    facts["gamma2_fitted"] = repr(reference.gamma2)
    score = score_of(model)
    if score not in reference.scores:  # an older file
        return facts
    return facts | {
        "score": score,
        "tpr": repr(tpr),
        "threshold": repr(reference.threshold(score, tpr)),
        "validation_images": str(reference.images(score)),
    }


def score_of(model: Classifier) -> str:
    """Output that the graph's threshold belongs to: the model's own score where the graph computes it."""
    return model.abstains_by if model.abstains_by in SCORES else "log_density"


def _remarks(model: Classifier) -> Iterator[str]:
    if model.reference is None:
        stored = "training" if model.denoising else "the paper's formula"
        yield (
            f"this model keeps no scores of validation images: the graph's γ² is that of {stored}, its "
            "posterior is not calibrated, and there is no threshold to abstain by"
        )
    elif score_of(model) not in model.reference.scores:
        yield f"there is no threshold to abstain by: this model keeps none for {score_of(model)}; {REFIT}"
    elif model.abstains_by not in SCORES:
        yield f"the model abstains by {model.abstains_by}, the graph's threshold is that of {score_of(model)}"


def _is_ours(path: Path, onnx: Any) -> bool:
    """Whether this is a graph with our metadata."""
    try:
        proto = onnx.load_model_from_string(read_bytes(path, MODEL_BYTES, "MODEL_BYTES"))
    except Exception:  # protobuf has errors of its own
        return False
    return any(fact.key == MARK for fact in proto.metadata_props)


# --- tracing --------------------------------------------------------------------------------------


def _packages() -> Any:
    """onnx, once all that exporting needs can be imported."""
    onnx, _ = [import_extra(name, "onnx", f"exporting to {ENDING}") for name in NEEDED]
    return onnx


def _traced(graph: Graph, shape: tuple[int, ...], opset: int) -> Any:
    """The graph as ONNX has it, without the traces that lead to files of this machine."""
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph.eval(),
            (torch.rand(2, *shape),),  # of one image the number would be taken for a constant
            dynamo=True,
            opset_version=opset,
            input_names=[INPUT],
            output_names=list(graph.outputs),
            dynamic_shapes={INPUT: {0: torch.export.Dim("N")}},
            verbose=False,
        )
    assert program is not None  # it is only where the old exporter writes a file by itself
    proto = program.model_proto
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return proto


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter talks of other packages and of its own future."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# --- checking -------------------------------------------------------------------------------------


def difference(content: bytes, graph: Graph) -> float | None:
    """How far onnxruntime is from what `answer` computes; refused above 1e-4, None without onnxruntime.

    Logits and densities are compared relative to the largest logit of the image at their γ², where that is
    above 1: far from all means they are large, and float32 has seven digits of them. The posterior then is
    whatever the softmax of the graph's own logits says, and is compared with that as it is.
    """
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of its own kinds; a too new opset is the usual one
        reason = " ".join(str(error).split())[-200:]
        raise InputError(f"onnxruntime cannot read the graph ({reason}); an older opset may do") from None
    images = check_images(graph.model.shape)
    network = graph.model.tempered()
    features = scores.features(network, images)
    energies = network.energies_of(features)
    wanted = {"logits": logits_at(network, energies, graph.gamma2)}
    wanted |= scores.feature_scores(network, features, graph.gamma2)
    size = {"logits": wanted["logits"].abs().amax(-1).clamp(min=1)}
    size |= dict.fromkeys(
        SCORES, logits_at(network, energies, network.density_gamma2).abs().amax(-1).clamp(min=1)
    )
    largest = 0.0
    for part in (images[:1], images):
        n = len(part)
        found = {
            name: torch.from_numpy(output).double()
            for name, output in zip(graph.outputs, session.run(None, {INPUT: part.numpy()}), strict=True)
        }
        gaps = {
            name: (found[name] - wanted[name][:n]).abs().reshape(n, -1).amax(-1) / size[name][:n]
            for name in found
            if name != "posterior"
        }
        gaps["posterior"] = (found["posterior"] - found["logits"].softmax(-1)).abs().amax(-1)
        for name, gap in gaps.items():
            worst = gap.max().item()
            if not worst <= TOLERANCE:  # also true for NaN
                raise InputError(
                    f"onnxruntime must agree with torch to {TOLERANCE:g}, got {worst:.2g} in {name}"
                )
            largest = max(largest, worst)
    return largest


def check_images(shape: tuple[int, ...]) -> Tensor:
    """Five images in [0, 1]: noise, where every pixel counts, and a black one."""
    noise = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    return torch.cat([noise, torch.zeros(1, *shape)])
