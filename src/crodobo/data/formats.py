"""Known image formats and file suffixes."""

# Formats that Pillow decodes itself. Others call external programs, or are not for photographs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")  # JPEG opens MPO too
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib"),
    *(".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".mpo", ".jp2", ".j2k"),
)
