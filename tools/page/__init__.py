"""The one writer of pages: documents, axes and charts. Pages need no network and run no scripts."""
