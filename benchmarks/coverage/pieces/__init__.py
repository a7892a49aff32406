"""Message passing with torch alone, in many styles."""
