"""Names of the files and folders of a store next to its tables. All of them start with an underscore."""

MARK = "_store.json"  # the format of what lies in the store
LEASES = "_lease"  # who drives, and which versions readers pin
PARTS = "_parts"  # completion records, by table and run
RUNS = "_runs"  # plans of unfinished runs
MANIFESTS = "_runs/manifests"  # of finished runs, by time
ANSWER_KEYS = "_runs/answers"  # keys of the answers of each finished run
ATTEMPTS = "_attempts"  # counters of runs that no report contains yet
INGESTED = "_ingested"  # which files were read, and what they contained
PROBES = "_probes"  # what models behind an address said to fixed texts, by model
FOLDERS = "_folders"  # the files of each folder that was read, as they were then
ANN = "_ann"  # the measured recall of each approximate index, by table
SIZES = "_sizes"  # characters of each source
CHANGING = "_changing"  # the version of each table that is being changed, before the change
MEMO = "_memo"  # cached values that no memo table contains yet
MEMO_LOSSES = "_memo_losses"  # a note for each loss of cached values, by table
RELEASES = "_releases"  # one file per release
LIVE = "_releases/live.json"  # which release answers
