"""The activities: what a perform document can do. Each is declared once; ``dai.activity.ACTIVITIES`` lists them."""
