"""Data: readers of files that report every malformed line, and batches in a reproducible order."""

from .detection import Boxes, read_boxes
from .graphs.graph_sets import LabelledGraph, read_graphs
from .graphs.node_graphs import Graph, draw_masks, read_nodes
from .images import Captioned, ImageBytes, ImageFile, LabelledImage, load_image, read_captions, read_images
from .reading import Fault, Reading, split
from .sound import LabelledSound, Samples, SoundFile, Spoken, read_sounds, read_spoken
from .tagged import Tagged, read_tagged
from .text import Document, LabelledText, Parallel, read_lines, read_parallel, read_texts

__all__ = [
    "Boxes",
    "Captioned",
    "Document",
    "Fault",
    "Graph",
    "ImageBytes",
    "ImageFile",
    "LabelledGraph",
    "LabelledImage",
    "LabelledSound",
    "LabelledText",
    "Parallel",
    "Reading",
    "Samples",
    "SoundFile",
    "Spoken",
    "Tagged",
    "draw_masks",
    "load_image",
    "read_boxes",
    "read_captions",
    "read_graphs",
    "read_images",
    "read_lines",
    "read_nodes",
    "read_parallel",
    "read_sounds",
    "read_spoken",
    "read_tagged",
    "read_texts",
    "split",
]
