#!/usr/bin/env python3
"""Writes the files beside this script, which the tests of the file readers read.

They come from the programs whose formats Tapedeck promises to read, at the versions last used:
numpy 2.4.6, safetensors 0.8.0, torch 2.15.0, pillow 13.0.0. PNGs are put together here, so that every
colour type, depth and interlacing occurs with samples that the tests can compute.
"""
import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

HERE = Path(__file__).parent


def idx():
    """Two images of each element type, and the first also gzipped."""
    for code, dtype in [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]:
        a = (np.arange(12) - (0 if code == 8 else 6)).reshape(2, 3, 2).astype(dtype)
        data = struct.pack(">BBBBIII", 0, 0, code, 3, *a.shape) + a.tobytes()
        (HERE / f"type{code}.idx").write_bytes(data)
        if code == 8:
            (HERE / "type8.idx.gz").write_bytes(gzip.compress(data, mtime=0))


def npy():
    a = np.arange(24).reshape(2, 3, 4)
    for name, dtype in [("f8", "<f8"), ("f4", "<f4"), ("f2", "<f2"), ("i8", "<i8"), ("u1", "|u1")]:
        np.save(HERE / f"c_{name}.npy", a.astype(dtype))
        np.save(HERE / f"fortran_{name}.npy", np.asfortranarray(a.astype(dtype)))
    np.save(HERE / "scalar.npy", np.float64(2.5))
    np.save(HERE / "empty.npy", np.zeros((0, 3), np.float32))
    np.save(HERE / "big_endian.npy", a.astype(">f4"))
    np.save(HERE / "structured.npy", np.zeros(2, [("x", "<f4"), ("y", "<i8")]))
    for version in [(2, 0), (3, 0)]:
        with open(HERE / f"version{version[0]}.npy", "wb") as f:
            np.lib.format.write_array(f, a.astype("<f4"), version)


def safetensors():
    r = torch.arange
    save_file(
        {
            "double": r(3, dtype=torch.float64) / 3,
            "float": (r(6, dtype=torch.float32) / 3).reshape(2, 3),
            "bfloat": (r(4) / 3).to(torch.bfloat16),
            "half": (r(4) / 3).to(torch.float16),
            "long": r(-2, 3, dtype=torch.int64),
            "byte": r(250, 256).to(torch.uint8),
            "scalar": torch.tensor(-1.5),
            "empty": torch.zeros(0, 4),
            'quote " é': torch.ones(1),
        },
        HERE / "kept_types.safetensors",
        {"note": 'a "quoted"\nline'},  # one entry: the package writes several in no fixed order
    )
    save_file(
        {
            "bool": torch.tensor([True, False, True]),
            "int": r(-2, 3, dtype=torch.int32) * 2**28,
            "short": r(-2, 3, dtype=torch.int16) * 1000,
            "char": r(-2, 3, dtype=torch.int8) * 60,
            "u64": torch.tensor([2**62], dtype=torch.uint64),
            "u32": torch.tensor([2**32 - 1], dtype=torch.uint32),
            "u16": torch.tensor([2**16 - 1], dtype=torch.uint16),
        },
        HERE / "converted_types.safetensors",
    )
    torch.manual_seed(1)
    module = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(2, 3, (4, 2), stride=2), torch.nn.BatchNorm2d(3), torch.nn.ReLU()
    )
    save_file(module.state_dict(), HERE / "state_dict.safetensors")
    save_file({"x": torch.zeros(2).to(torch.float8_e4m3fn)}, HERE / "float8.safetensors")


COLOUR = {1: 0, 2: 4, 3: 2, 4: 6}  # channels -> PNG colour type


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack(row, bits):
    """One row of samples as bytes."""
    if bits == 16:
        return b"".join(struct.pack(">H", s) for s in row)
    text = "".join(format(s, f"0{bits}b") for s in row)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def png(name, samples, bits, colour, extra=(), interlaced=False):
    """samples [h][w][c]."""
    h, w = len(samples), len(samples[0])
    raw = b""
    for y0, x0, dy, dx in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        for y in range(y0, h, dy):
            row = [s for x in range(x0, w, dx) for s in samples[y][x]]
            if row:
                raw += b"\0" + pack(row, bits)
    header = struct.pack(">IIBBBBB", w, h, bits, colour, 0, 0, int(interlaced))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    for kind, body in extra:
        data += chunk(kind, body)
    data += chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    (HERE / f"{name}.png").write_bytes(data)


def pngs():
    h, w = 5, 7

    def picture(channels, bits):
        return [
            [[(1237 * y + 5101 * x + 7759 * c + 11) % 2**bits for c in range(channels)] for x in range(w)]
            for y in range(h)
        ]

    for bits in [1, 2, 4, 8, 16]:
        png(f"gray{bits}", picture(1, bits), bits, 0)
    for channels, name in [(2, "gray_alpha"), (3, "rgb"), (4, "rgba")]:
        for bits in [8, 16]:
            png(f"{name}{bits}", picture(channels, bits), bits, COLOUR[channels])
    png("rgb8_interlaced", picture(3, 8), 8, 2, interlaced=True)
    indices = [[[(y + 2 * x) % 6] for x in range(w)] for y in range(h)]
    colours = bytes(v for k in range(6) for v in ((40 * k) % 256, (70 * k + 5) % 256, 255 - 30 * k))
    png("palette4", indices, 4, 3, [(b"PLTE", colours)])
    png("palette8_alpha", indices, 8, 3, [(b"PLTE", colours), (b"tRNS", bytes([0, 128]))])
    gamma = struct.pack(">I", 100000)
    png("gray8_gamma", picture(1, 8), 8, 0, [(b"gAMA", gamma)])


def jpegs():
    y, x = np.mgrid[0:20, 0:24]
    rgb = np.stack([10 * x, 12 * y, 255 - 5 * (x + y)], -1).astype(np.uint8)
    pictures = {
        "gray": (Image.fromarray(rgb[..., 0]), {}),
        "rgb": (Image.fromarray(rgb), {}),
        "rgb_progressive": (Image.fromarray(rgb), {"progressive": True, "subsampling": 0}),
        "cmyk": (Image.fromarray(np.concatenate([rgb, rgb[..., :1] // 2], -1), "CMYK"), {}),
    }
    for name, (image, options) in pictures.items():
        image.save(HERE / f"{name}.jpg", quality=90, **options)
        decoded = np.asarray(Image.open(HERE / f"{name}.jpg"))
        np.save(HERE / f"{name}.jpg.npy", decoded if decoded.ndim == 3 else decoded[..., None])


def resized():
    torch.manual_seed(2)
    image = torch.rand(3, 17, 23)
    np.save(HERE / "resize_in.npy", image.numpy())
    for h, w in [(5, 7), (16, 24), (29, 31)]:
        out = torch.nn.functional.interpolate(image[None], (h, w), mode="bilinear", antialias=True)[0]
        np.save(HERE / f"resize_{h}x{w}.npy", out.numpy())


idx()
npy()
safetensors()
pngs()
jpegs()
resized()
