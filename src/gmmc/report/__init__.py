"""Results → tables and figures → one HTML page. Reads files only and never imports torch."""
