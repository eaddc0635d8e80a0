"""Pictures of Wireshark's window, by a virtual screen (Xvfb)."""

import pathlib
import shutil
import struct
import subprocess
import time
import zlib

WIDTH, HEIGHT = 1240, 480
COLUMNS = [("No.", "%m"), ("Time", "%t"), ("Interface", "%Cus:frame.interface_name:0:R"),
           ("Source address", "%Cus:ip.src:1:R"), ("Destination address", "%Cus:ip.dst:1:R"),
           ("Queue pair", "%Cus:vtepd_qp.number:0:R"), ("Decision", "%Cus:frame.comment:0:R")]
WIDTHS = [45, 95, 80, 115, 115, 85, 720]


def configure(home, scripts, pairs):
    """Writes Wireshark's settings: its columns, the dissectors and colours of `scripts`, and `pairs`."""
    settings = home / ".config" / "wireshark"
    plugins = home / ".local" / "lib" / "wireshark" / "plugins"
    for folder in (settings, plugins):
        folder.mkdir(parents=True)
    for script in scripts.glob("*.lua"):
        shutil.copy(script, plugins)
    shutil.copy(scripts / "colorfilters", settings)
    columns = ", ".join(f'"{name}", "{field}"' for name, field in COLUMNS)
    (settings / "preferences").write_text(
        f"gui.column.format: {columns}\ngui.update.enabled: FALSE\nvtepd_qp.file: {pairs}\n"
        "gui.layout_type: 1\nnameres.network_name: FALSE\n")
    (settings / "recent").write_text(
        "column.width: " + ", ".join(f"{field}, {width}" for (_, field), width in zip(COLUMNS, WIDTHS))
        + "\ngui.packet_list_show: TRUE\ngui.tree_view_show: TRUE\ngui.byte_view_show: FALSE\n"
        "gui.geometry_main_upper_pane: 240\n")
    (settings / "recent_common").write_text(
        f"gui.geometry_main_x: 0\ngui.geometry_main_y: 0\ngui.geometry_main_width: {WIDTH}\n"
        f"gui.geometry_main_height: {HEIGHT}\nprivs.warn_if_elevated: FALSE\n")


def png(screen):
    """A picture of an XWD file (X11/XWDFile.h) with four bytes a pixel: blue, green, red and none."""
    size, = struct.unpack(">I", screen[:4])
    header = struct.unpack(">25I", screen[:100])
    width, height, line, colours = header[4], header[5], header[12], header[19]
    pixels = screen[size + 12 * colours:]
    rows = bytearray()
    for at in range(height):
        row = pixels[at * line:at * line + 4 * width]
        colour = bytearray(3 * width)
        colour[0::3], colour[1::3], colour[2::3] = row[2::4], row[1::4], row[0::4]
        rows += b"\0" + colour
    def chunk(name, data):
        return (struct.pack(">I", len(data)) + name + data
                + struct.pack(">I", zlib.crc32(name + data)))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(bytes(rows), 9)) + chunk(b"IEND", b""))


def shot(capture, home, shown, seconds=60):
    """A picture of the window that shows packets of a capture, once it stands still."""
    display = ":97"
    screen = home / "screen"
    screen.mkdir()
    server = subprocess.Popen(["Xvfb", display, "-screen", "0", f"{WIDTH}x{HEIGHT}x24", "-nolisten",
                               "tcp", "-nocursor", "-fbdir", str(screen)], stderr=subprocess.DEVNULL)
    window = None
    try:
        file = screen / "Xvfb_screen0"
        end = time.monotonic() + seconds
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1)
        environment = {"HOME": str(home), "DISPLAY": display, "PATH": "/usr/bin:/bin",
                       "XDG_RUNTIME_DIR": str(home), "LC_ALL": "C.UTF-8"}
        window = subprocess.Popen(["wireshark", "-r", str(capture), "-Y", shown], env=environment,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before, since = file.read_bytes(), time.monotonic()
        begun = False
        while time.monotonic() < end:
            time.sleep(0.5)
            now = file.read_bytes()
            if now != before:
                begun, before, since = True, now, time.monotonic()
            if begun and time.monotonic() - since > 5:
                return png(now)
        raise AssertionError("the window does not stand still")
    finally:
        for process in (window, server):
            if process:
                process.terminate()
                process.wait()
