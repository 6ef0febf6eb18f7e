"""LoRA adapters: rows and their trained tokens, the order of batches, the loop, and its workers on Ray.

    rows = [tokenized(chats, example) ...]    # rows.py: ids, and where the answer begins
    plan = batch_plan(lengths, ...)           # rows.py: the rows of each step, for any number of workers
    state = train(job, group, ...)            # loop.py: one worker; the same numbers alone and in a group
    write_adapter(folder, tensors, ...)       # model.py: equal training gives equal bytes

Knows torch, transformers and peft; Ray in `workers` alone. Knows no store, no recipe and no label file.
"""
