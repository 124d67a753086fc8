"""The studies, and how many cells each has: rows times columns."""

# At scale full, counted by hand in the paper, and those of the rows that are ours.
CELLS = {
    'table2': (6 + 2) * 4,
    'table3': (5 + 3) * 3,
    'table4': (5 + 3) * 4,
    'table5': 3 * 4,
    'table6': 2 * 3 * 4 * 3,  # under the settings of paper and code
    'fig5_6_cost': 3 * 5 * 5,
    'fig9_labels': (6 + 2) * 5 + 2 * 5,
    'fig10_client_labels': 2 * 4,
    'fig11_frequency': 2 * 5,
    'fig12_ablation': 5 + 5,
    'fixed_k_s': 2 * 6 * 2,
    'parts': (10 + 3) * 2,
    'semifl_parts': 10 * 2,
    'fedmatch_parts': 9 * 2,
}
# Of Fed-SHVR and FedDure, at every scale but where noted
CELLS_OF_LABELED = {
    'shvr_table1': 11 * 4 + 4 * 8,
    'shvr_fig4': 3 * 2,
    'shvr_fig6': 2 * 4 * 5,
    'feddure_table1': 9 * 3 * 3,  # at scale full; one data set at the others
    'feddure_table2': 4 * 4,
}
# By scale: methods, constant predictions, and in saliency all objects
CELLS_OF_MFED = {
    'mfed_table2': {
        'smoke': 4 * 5 + 1 + 4 * 10 + 2,
        'cpu': 4 * 5 + 1 + 4 * 10 + 2,
        'full': 4 * 5 + 1 + 6 * 10 + 2,
    },
    'mfed_table3': {'smoke': 4 * 3, 'cpu': 4 * 3, 'full': 2 * 4 * 3},
}
