"""Labels by db3's rules, and LoRA adapters that are trained on them.

    rows = [tokenized(chats, example) ...]    # rows.py: ids, and where the answer begins
    plan = batch_plan(lengths, ...)           # rows.py: the rows of each step, for any number of workers
    state = train(job, group, ...)            # loop.py: one worker, alone or in a group
    write_adapter(folder, tensors, ...)       # model.py: its files, as engines load them

Of these rows, loop, model and estimate know torch, transformers and peft; Ray in `workers` alone.
"""
