"""Image files that are known, by what they are and by how they are called."""

# Formats that Pillow decodes itself; the others call programs, or are not photographs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")  # JPEG opens MPO too
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib"),
    *(".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".mpo", ".jp2", ".j2k"),
)
