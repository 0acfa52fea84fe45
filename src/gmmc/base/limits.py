"""Every bound on what is read from a file, so that a small hostile file cannot take the memory of a machine.

An error about a bound names its constant, as in "(limits.ENCODED_BYTES)".
"""

MiB = 2**20

# Images
ENCODED_BYTES = 64 * MiB  # of one encoded image in a cell of a parquet file, and of a picture in a report
PICTURE_PIXELS = 89_478_485  # width × height of one picture, before it is resized; Pillow's own first bound
PICTURE_BYTES = 4 * PICTURE_PIXELS  # of an image file: all formats, also those that do not compress
IMAGE_SIDE = 4096  # pixels of one side of an image as a model sees it
PIXELS_AT_ONCE = 2**27  # of all pictures that are being decoded at a time
MEMORY_SHARE = 0.5  # of this machine's memory that the decoded images of one split may take
PARQUET_BYTES = 128 * MiB  # of rows that are read from a parquet file at a time
PARQUET_RATIO = 20  # to which a larger column may be compressed; encoded images hardly can be
FOLDER_DEPTH = 64  # of folders inside each other

# Models, results and other documents
MODEL_BYTES = 8 * 1024 * MiB  # of a model's file
ROW_NUMBERS = 100_000  # of one row of a table, as a model sees it
DOCUMENT_BYTES = 64 * MiB  # of a TOML or JSON file
RESULTS_KEPT = 1000  # entries of results.json
METRICS_BYTES = 64 * MiB  # of metrics.jsonl, which grows with a training
TOML_CHARACTERS = MiB  # of a recipe or a card
NESTING = 32  # levels of brackets in a TOML or JSON file, and parts of a dotted key
WHOLE_NUMBER = 2**63 - 1  # in a JSON file or a recipe; torch and numpy hold no larger one
STATE_COUNTS = {"step": 10**9 - 1, "lines": 10**9, "processes": 2**20, "threads": 2**12}  # of a resume state
BACKBONE_NAME = 24  # characters; its sizes are converted to integers
CLASSES = 100_000
CLASS_NAME = 200  # characters

# Marks of our own files, and errors
MARK_BYTES = 4096  # at the beginning of a file, where gmmc's mark is sought
SHOWN = 80  # characters of an offending value
LONG_SHOWN = 400  # characters of an offending path, and of a list of what is allowed
MESSAGE = 2000  # characters of a whole message on the command line
