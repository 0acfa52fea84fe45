"""`gmmc predict`: classify image files, and abstain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gmmc.base.progress import Progress
from gmmc.classifier.image_files import check_images, read_pictures
from gmmc.classifier.model import Classifier

FEW = 8  # images that need no progress


def predict_files(
    model: Classifier,
    paths: Sequence[str | Path],
    *,
    resize: bool | None = None,
    score: str | None = None,
    tpr: float | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row per image file that can be read, and a line about each of the others.

    Folders stand for all image files in them. Standard error reports how many images were converted.
    `answer` is the class, None where the model abstains; `class` is the nearest in any case. A model without
    scores of validation images never abstains, and its confidence is not calibrated.
    """
    check_images(model)
    unread: list[str] = []
    images, read = read_pictures(paths, model, resize=resize, unread=unread)
    if not read:
        return [], unread
    if model.reference is None and score is None and tpr is None:
        confidence, labels = model.predict_proba(images).max(-1)
        names = [model.class_names[y] for y in labels]
        facts = [{"confidence": p, "calibrated": False, "in_distribution": None} for p in confidence.tolist()]
    else:
        looks = model.looks_for(score)
        few = looks == 1 or len(images) < FEW
        with Progress("predicting", looks * len(images), silent=few) as bar:
            answer = model.answer(images, score=score, tpr=tpr, on_progress=bar.update)
        names = answer.names
        facts = [
            {
                "confidence": answer.confidence[i].item(),
                "calibrated": True,
                "in_distribution": answer.accepted[i].item(),
                "score": answer.score,
                "value": answer.values[i].item(),
                "threshold": answer.threshold,
                "percentile": answer.percentile[i].item(),
                "validation_images": model.reference.images(answer.score) if model.reference else 0,
            }
            for i in range(len(images))
        ]
    rows = [
        {
            "image": str(path),
            "answer": None if fact["in_distribution"] is False else name,
            "class": name,
            **fact,
        }
        for path, name, fact in zip(read, names, facts, strict=True)
    ]
    return rows, unread
