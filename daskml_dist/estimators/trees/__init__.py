"""Base classes of decision trees and forests: parameters, importances, predictions."""
