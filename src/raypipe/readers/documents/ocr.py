"""Text recognition in the child process with limits: the text of an image, with its confidence.

`rapidocr` is used if it is installed (the extra `ocr`; its wheel contains the models), else the program
`tesseract` if it is on PATH. Without either of them, images have no text. Both take pixels and return pieces:
lines or parts of lines. `page_layout` finds tables among them. This module reads images, no PDFs.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import io
import math
import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raypipe.readers.documents.page_layout import laid_out
from raypipe.readers.documents.page_tables import Box, lines_of
from raypipe.readers.rows import DOCUMENT_LIMITS, UnusableLine

PIXELS = 2_800_000  # most pixels of an image that is read: A4 at 170 dots per inch; memory grows with them
LEAST = 0.5  # least confidence of a piece that is used; rapidocr's default
GAP = 0.5  # least gap between two cells, in letter heights; small, since a wide space already ends a piece
THREADS = 4
DARK, BLANK = 128, 0.002  # gray level (of 255) below which a pixel is dark; most dark share of a blank page
LONGEST = 5  # number of lines that decide whether a page is upside down
CERTAIN = 0.9  # least confidence that a line is upside down; rapidocr's default
INSTALL = "`pip install 'raypipe[ocr]'` (or Debian's tesseract-ocr), and the next ingest reads it"


class TextPiece(NamedTuple):
    """Line of text, or the part of a line in one cell of a table."""

    box: Box  # pixels, y upwards
    text: str
    confidence: float  # 0..1


@cache
def engine() -> str:
    """Returns name and version of the installed text recognition; "" if there is none."""
    if all(map(importlib.util.find_spec, ("rapidocr", "onnxruntime"))):
        return f"rapidocr {importlib.metadata.version('rapidocr')}"
    if shutil.which("tesseract") is None:
        return ""
    try:
        return f"tesseract {_tesseract('--version').split()[1]} {_languages()}"
    except (OSError, subprocess.SubprocessError):
        return ""  # the program cannot be run


def no_text() -> str:
    """Explains to the user why an image has no text."""
    return f"an image in which {engine()} finds no text" if engine() else f"an image without text: {INSTALL}"


def scale(width: float, height: float) -> float:
    """Returns the factor that scales both sides of an image so that it has PIXELS pixels."""
    return math.sqrt(PIXELS / max(width * height, 1.0))


def read(pixels: np.ndarray) -> dict[str, Any]:
    """Reads an image. `pixels` is (height, width, 3) uint8, blue first. Returns its `text`, the mean
    `confidence` per character, and `scan`: True if no text was read although the image is not blank."""
    found = _by_rapidocr(pixels) if engine().startswith("rapidocr") else _by_tesseract(pixels)
    kept = [piece for piece in found if piece.confidence >= LEAST]
    lines = [[kept[i] for i in line] for line in lines_of([p.box for p in kept], range(len(kept)), back=3)]
    whole = "\n".join(" ".join(piece.text for piece in line) for line in lines)
    order = [piece for line in lines for piece in line]
    text, _ = laid_out(whole, [p.box for p in order], lambda i: order[i].text, gap=GAP)
    chars = sum(len(piece.text) for piece in kept)
    sure = sum(piece.confidence * len(piece.text) for piece in kept) / max(chars, 1)
    drawn = not kept and float((pixels.mean(2) < DARK).mean()) > BLANK
    return {"text": text, "confidence": math.floor(100 * sure) / 100, "scan": drawn}


@cache
def _rapidocr() -> Any:
    import cv2
    import rapidocr  # installed by the extra `ocr`

    cv2.setNumThreads(1)
    models = Path(rapidocr.__file__).parent / "models"
    return rapidocr.RapidOCR(
        params={
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),  # given, so that nothing is downloaded
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            "Cls.model_path": str(models / "ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
            "Global.log_level": "error",
            "Global.text_score": LEAST,
            "EngineConfig.onnxruntime.intra_op_num_threads": min(THREADS, os.cpu_count() or 1),
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            "Rec.rec_batch_num": 1,
        }
    )


def _by_rapidocr(pixels: np.ndarray) -> list[TextPiece]:
    """Reads the pieces of an image whose lines may be level, vertical, slanted or upside down. Returns boxes
    as they would be in an image with upright, level lines."""
    corners, texts, sure = _looked_at(pixels)
    tall = np.ptp(corners[:, :, 1], axis=1) > np.ptp(corners[:, :, 0], axis=1)
    chars = np.array([len(text) for text in texts])
    if 2 * chars[tall].sum() > chars.sum():
        pixels = np.ascontiguousarray(np.rot90(pixels))
        corners, texts, sure = _looked_at(pixels)
    height, width = pixels.shape[:2]
    if _on_its_head(pixels, corners):
        corners = (width, height) - corners
    edges = corners[:, 1] - corners[:, 0]
    long = edges[np.abs(edges[:, 0]) > 0.1 * width]
    slope = float(np.median(long[:, 1] / long[:, 0])) if len(long) else 0.0
    xs, ys = corners[:, :, 0], height - corners[:, :, 1] + slope * corners[:, :, 0]  # lines are level now
    edges_of = zip(xs.min(1), np.sort(ys)[:, :2].mean(1), xs.max(1), np.sort(ys)[:, 2:].mean(1), strict=True)
    boxes = (Box(*map(float, edges)) for edges in edges_of)
    return [TextPiece(*found) for found in zip(boxes, texts, map(float, sure), strict=True)]


def _looked_at(pixels: np.ndarray) -> tuple[np.ndarray, tuple[str, ...], tuple[float, ...]]:
    """Runs rapidocr. Returns the pieces' corners (pieces, 4, 2) float as x and y, texts and confidences."""
    found = _rapidocr()(pixels, use_det=True, use_cls=True, use_rec=True)
    if not len(found):
        return np.zeros((0, 4, 2)), (), ()
    return np.asarray(found.boxes, float), found.txts, found.scores


def _on_its_head(pixels: np.ndarray, corners: np.ndarray) -> bool:
    """Returns whether more than half of the longest lines are upside down. Examines LONGEST lines at most."""
    wide = np.argsort(-np.ptp(corners[:, :, 0], axis=1), kind="stable")[:LONGEST]
    turned = 0
    for piece in corners[wide]:
        (left, top), (right, bottom) = piece.min(0).clip(0).astype(int), piece.max(0).astype(int) + 1
        line = np.ascontiguousarray(pixels[top:bottom, left:right])
        [(label, sure)] = _rapidocr()(line, use_det=False, use_cls=True, use_rec=False).cls_res
        turned += label == "180" and sure > CERTAIN
    return 2 * turned > len(wide)


def _tesseract(*arguments: str, image: bytes = b"") -> str:
    """Runs tesseract and returns its output. Raises OSError if it fails, and TimeoutExpired after the
    wall-time limit of a page. If this process is killed, tesseract runs on to its end."""
    ran = subprocess.run(
        ["tesseract", *arguments], input=image, capture_output=True, timeout=DOCUMENT_LIMITS.ocr_wall_s
    )
    if ran.returncode:
        detail = ran.stderr.decode(errors="replace")[-300:]
        raise OSError(f"tesseract ended with code {ran.returncode}: {detail}")
    return ran.stdout.decode(errors="replace")


@cache
def _languages() -> str:
    """Returns all installed languages in the form of tesseract's option `-l`, English first."""
    listed = set(_tesseract("--list-langs").split("\n")[1:]) - {"", "osd", "equ"}
    return "+".join(sorted(listed, key=lambda name: (name != "eng", name)))


def _ppm(pixels: np.ndarray) -> bytes:
    return b"P6 %d %d 255\n" % pixels.shape[1::-1] + np.ascontiguousarray(pixels[:, :, ::-1]).tobytes()


def _by_tesseract(pixels: np.ndarray) -> list[TextPiece]:
    """Turns an image upright and reads its pieces: runs of words of a line without a wide space."""
    with suppress(OSError):  # raised if the image has too few letters to detect its rotation
        output = _tesseract("stdin", "stdout", "--psm", "0", image=_ppm(pixels))
        rotation = re.search(r"Rotate: (\d{1,3})", output)
        pixels = np.rot90(pixels, -int(rotation[1]) // 90) if rotation else pixels
    height, image = len(pixels), _ppm(pixels)
    output = _tesseract("stdin", "stdout", "-l", _languages(), "--psm", "3", "tsv", image=image)
    found, line = list[TextPiece](), ""
    for row in csv.DictReader(io.StringIO(output), delimiter="\t", quoting=csv.QUOTE_NONE):
        if row["level"] != "5" or not row["text"].strip():
            continue
        left, top, wide, high = (int(row[name]) for name in ("left", "top", "width", "height"))
        box, sure = Box(left, height - top - high, left + wide, height - top), float(row["conf"]) / 100
        place = "-".join(row[name] for name in ("block_num", "par_num", "line_num"))
        last = found[-1] if found and place == line else None
        line = place
        if last is None or box.left - last.box.right > max(box.height, last.box.height):
            found.append(TextPiece(box, row["text"], sure))
            continue
        edges = zip(last.box, box, (min, min, max, max), strict=True)
        chars, more = len(last.text), len(row["text"])
        mean = (last.confidence * chars + sure * more) / (chars + more)
        found[-1] = TextPiece(Box(*(pick(a, b) for a, b, pick in edges)), f"{last.text} {row['text']}", mean)
    return found


class Images:
    """Images of a file, each read like a page. The class has the methods of `pdf.Pdf`."""

    def __init__(self, image: Any) -> None:
        self._image = image  # PIL's

    @classmethod
    def opened(cls, data: bytes) -> Images:
        """Opens the images in a file. Raises UnusableLine with the reason broken or too_large."""
        from PIL import Image  # installed with rapidocr

        Image.MAX_IMAGE_PIXELS = DOCUMENT_LIMITS.pixels // 2  # Pillow refuses above twice this number
        try:
            return cls(Image.open(io.BytesIO(data)))
        except Image.DecompressionBombError as e:
            most = f"expected at most {DOCUMENT_LIMITS.pixels:,} pixels, found more"
            raise UnusableLine("too_large", most) from e
        except OSError as e:
            raise UnusableLine("broken", f"expected a whole image: {e}") from e

    def about(self) -> dict[str, Any]:
        pages = getattr(self._image, "n_frames", 1)
        return {"pages": pages, "title": "", "outline": [], "xfa": False, "protected": False}

    def page(self, index: int) -> dict[str, Any]:
        return {"text": "", "label": str(index + 1), "scan": True}

    def scan(self, index: int) -> dict[str, Any]:
        from PIL import Image, ImageOps  # installed with rapidocr

        try:
            self._image.seek(index)
            image = self._image if self._image.mode not in ("1", "P") else self._image.convert("RGBA")
            size = [round(side * min(scale(*image.size), 1.0)) or 1 for side in image.size]
            image.draft("RGB", size)
            image.thumbnail(size)
            image = ImageOps.exif_transpose(image)
            ground = Image.new("RGBA", image.size, "white")
            ground.alpha_composite(image.convert("RGBA"))
        except (OSError, ValueError, SyntaxError) as e:
            raise UnusableLine("broken", f"expected a whole image: {e}") from e
        return read(np.asarray(ground.convert("RGB"))[:, :, ::-1].copy())

    def close(self) -> None:
        self._image.close()
