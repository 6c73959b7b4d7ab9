"""Remedies for scikit-learn's messages without one, found by parts of the messages.

scikit-learn has no error codes, so a message is recognised by words that few other messages have;
tests raise these errors, so that they detect a changed wording in a new release. This module does
not import scikit-learn, which workers train without.
"""

from __future__ import annotations

import re

from daskml_dist.errors.suggestions import suggest_nearest

_COLUMNS = "Name columns that X has, which a dataframe lists as X.columns."
_CATEGORIES = (
    'Fit on rows with every category, or set handle_unknown ("ignore", "infrequent_if_exist" or '
    '"use_encoded_value", whichever the encoder has).'
)
_MEMBERS = 'Give (name, estimator) pairs, such as [("nb", GaussianNB())].'

#: Regular expression of a message, and the sentence to add; the first match is used.
_REMEDIES: tuple[tuple[str, str], ...] = (
    # The encoders of categories.
    ("Found unknown categories", _CATEGORIES),
    (
        # NumPy's words, for columns of dates together with columns of numbers.
        "could not be promoted by",
        "Convert dates and time spans to numbers (X[name].dt.hour, X[name].dt.total_seconds()), "
        "or leave their columns out.",
    ),
    ("average=None is not implemented", 'Use multi_class="ovr", or average="macro".'),
    ("should be a 1d array", "Pass one column, such as y[:, 0]."),
    ("must be an instance of 'list'", "Give a list."),
    # Every fitted estimator, given rows with another number of columns.
    ("features, but .* is expecting", "Select the columns that it was fitted on."),
    (
        "Invalid parameter .* for estimator Pipeline",
        "Prefix the name of the step and two underscores, such as sgdclassifier__alpha.",
    ),
    ("need to be a non-empty sequence", "Give one value or more."),
    (
        "'score_func' parameter of make_scorer",
        'Pass a function of (y_true, y_pred); for a name, use get_scorer("accuracy").',
    ),
    ("columns are missing", "Transform rows with all columns that the fit chose by name."),
    ("are not columns of the dataframe|all features must be in", _COLUMNS),
    (
        "using strings is only supported",
        "Pass a dataframe, or the positions of the columns as integers.",
    ),
    (
        # ColumnTransformer, which unpacks its triples without a check of their length.
        "transform, or can be 'drop'|too many values to unpack|not enough values to unpack",
        'Give (name, transformer, columns), such as ("age", StandardScaler(), ["age"]).',
    ),
    ("Names provided are not unique", "Give each a different name."),
    ("got estimator class instead", "Pass an object: add the parentheses."),
    (
        "contains previously unseen labels|contains new labels",
        "Fit on rows with all labels, or drop these rows.",
    ),
    (
        "Cannot use (mean|median) strategy with non-numeric data",
        'For strings, use strategy="most_frequent" or "constant", or impute only the numeric '
        'columns: make_column_transformer((SimpleImputer(), ["a number"])).',
    ),
    (
        "must be uniformly strings or numbers",
        "Make each column one type: X[column].astype(str).",
    ),
    (
        "inconsistent numbers of samples",
        "Pass the same rows in each, in the same order.",
    ),
    ("'groups' parameter should not be None", "Pass groups=..., one group per row."),
    (
        "Stratified train/test split is not implemented",
        "Leave stratify out, or set shuffle=True.",
    ),
    (
        "test_size=.*should be either|train_size=.*should be either",
        "Pass a fraction between 0 and 1, or fewer rows than there are.",
    ),
    ("At least one array required", "Pass X, or X and y: train_test_split(X, y)."),
    (
        r"The least populated classes? in y",
        "Give each class two rows or more, or leave stratify out.",
    ),
    ("number of splits n_splits=", "Ask for fewer folds: cv=5, or n_splits=5."),
    (
        r"Supported target types are: \('binary'",
        "Use KFold for a continuous target.",
    ),
    (
        "interpreted as fractions of the maximum",
        "Give fractions up to 1.0, or integer numbers of rows.",
    ),
    # MinMaxScaler; then RobustScaler.
    ("feature range must be smaller", "Give (least, greatest), such as (0, 1)."),
    ("Invalid quantile range", "Give (low, high) in percent, such as (25.0, 75.0)."),
    (
        # CountVectorizer, if all words are filtered out.
        "empty vocabulary",
        "Check the texts, token_pattern, stop_words and min_df.",
    ),
    ("corresponds to < documents than min_df", "Set min_df below max_df."),
    (
        "document is of type|is an invalid document",
        'Texts must be strings; fill missing ones first: X.fillna("").',
    ),
    # FeatureHasher: of a string it would hash each character.
    ("Samples can not be a single string", "Pass a list of words for each row."),
    (r"non-empty list of \(string, estimator\)", _MEMBERS),
    (
        # The voting ensembles.
        "weights must be equal",
        "Give as many weights as members, or None.",
    ),
    (
        "Shape mismatch: if categories is an array",
        "Give a list of categories for each column, or categories='auto'.",
    ),
    (
        # Searches with several scores.
        r"refit must be set to a scorer key",
        'Set refit to the name of one score, such as refit="accuracy".',
    ),
    (
        "values greater than 1|values lower than 0|values less than 0",
        "Pass probabilities: the result of predict_proba(), for two classes its [:, 1].",
    ),
    ("Mix of label input types", "Convert both to one type, for example with .astype(str)."),
    (
        "is not a valid label",
        "Set pos_label to the label that counts as positive.",
    ),
    (
        "Unknown label type: unknown",
        "Convert the labels to one type, strings or integers: y.astype(str).",
    ),
    ("multiclass format is not supported", "Score one class at a time: y_true == label."),
    (
        "Squared Logarithmic Error cannot be used|Log Error cannot be used",
        "Use mean_squared_error where targets may be negative.",
    ),
    (
        "deviance error with power",
        "Use mean_squared_error where values may be negative.",
    ),
    (
        "At least one label specified must be in y_true",
        "Name labels that y_true holds, or leave labels out.",
    ),
    (
        # chi2, whose second message repeats all targets.
        "Input X must be non-negative",
        "Use f_classif, or scale the features to [0, 1] (MinMaxScaler).",
    ),
    (
        r"Unknown label type: \(",
        "Use f_regression for a continuous target, or cut it into classes.",
    ),
    (
        # Python's words, when values of several types are sorted.
        "'<' not supported between instances of",
        "Convert the values to one type, for example with .astype(str); drop missing ones first.",
    ),
    ("Found empty input array", "Check the files or the filter that the rows come from."),
    (
        "Number of labels is 1",
        "Ask for more clusters: a silhouette compares two or more.",
    ),
    ("cannot be cast to the input data", "Fill numeric columns with a number."),
    (
        # Partial dependence.
        "has none of the following attributes",
        'Name a method that it has, or leave response_method="auto".',
    ),
    ("Input should have at least 1 dimension", "Pass one value per row: y is needed here."),
    (
        "Input contains infinity|contains infinity or a value too large",
        "Replace it, for example X.replace([inf, -inf], nan).",
    ),
    (
        # Successive halving, about its `resource`.
        "which is not supported by estimator",
        'Name a parameter that counts iterations, such as "max_iter", or use "n_samples".',
    ),
)


def add_remedy(message: str) -> str:
    """Return a message of scikit-learn's with a remedy, if one is known.

    For a parameter that must be one of some names, the nearest name is suggested.
    """
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, message):
            # A message may be passed twice, by a block and by the method around it.
            return message if remedy in message else f"{message.rstrip().rstrip('.')}. {remedy}"
    # scikit-learn's constraints: "... must be a str among {'l1', 'l2'}. Got 'L1' instead."
    value_match = re.search(r"must be .*Got '([^']*)' instead", message, re.DOTALL)
    options = re.search(r"\{(.*)\}", message, re.DOTALL)
    if value_match and options:
        return message + suggest_nearest(value_match[1], re.findall(r"'([^']*)'", options[1]))
    return message
