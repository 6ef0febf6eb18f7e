"""LoRA adapters: rows and the tokens that are trained, the order of batches, the loop, and its workers on Ray.

    rows = [tokenized(reading, example) ...]    # rows.py: ids, and where the answer begins
    plan = batches(lengths, preset, ...)        # batches.py: which rows make each step, on any number of workers
    state = train(job, group, ...)              # loop.py: one worker; the same numbers alone and in a group
    write_adapter(folder, state, ...)           # adapter_files.py: equal training gives equal bytes

Knows torch, transformers and peft; Ray in `workers` alone. Knows no store, no recipe and no label file.
"""
