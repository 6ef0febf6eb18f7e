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
SIZES = "_sizes"  # characters of each source
CHANGING = "_changing"  # the version of each table that is being changed, before the change
MEMO = "_memo"  # cached values that no memo table contains yet
MEMO_LOSSES = "_memo_losses"  # a note for each loss of cached values, by table
ADAPTERS = "_adapters"  # LoRA weights that `finetune` made, a folder for each
TRAININGS = "_trainings"  # checkpoints of trainings that are not done yet
RELEASES = "_releases"  # one file per release
LIVE = "live"  # the file of RELEASES that says which release answers; `live@NAME` for a tenant
TOMBSTONES = "_tombstones"  # what was forgotten and may not come in again, by digest
FORGETTING = "_forgetting"  # what a forget that has not ended is doing
CAPTURED = "_captured/answers"  # what an endpoint was asked and answered, in segments
FEEDBACK = "_captured/feedback"  # what users said of captured answers, in segments
CAPTURE_SECRET = "_captured/secret"  # what signs the ids of captured answers
TRIALS = "_trials"  # `canary.json` and `shadow.json`: which release is tried next to the live one
TRIAL_PAIRS = "_trials/pairs"  # what both releases said, in segments
TRIAL_REPORTS = "_trials/reports"  # how each canary ended, by release
