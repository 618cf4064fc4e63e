"""What every experiment shares. An experiment is one file: question, predictions, presets, units of work, figures.

    ledger      results.jsonl by unit of work: what is finished is never computed again, what is cut is dropped
    command     one typed command line, progress, parts of a run on several machines, errors in one line
    tasks       an environment with a policy, its start and a fixed panel; gates
    arms        tuning on one grid, paired seeds on a vmap axis, one compiled program per method and shape
    costs       what a batch costs, by currency
    assess      how good every method's credit is, and the gradient it makes
    one_trajectory   the same for one trajectory, token by token
"""
